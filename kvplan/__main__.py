"""``python -m kvplan``."""

from kvplan.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
