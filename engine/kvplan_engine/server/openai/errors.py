"""An error as a client gets it: OpenAI's body, with the status and type that vLLM has for it."""

from __future__ import annotations

import msgspec

Headers = list[tuple[bytes, bytes]]
_LONGEST_MESSAGE = 2_000


class ApiError(Exception):
    """Ends a request. param: the field it is about."""

    def __init__(
        self, status: int, message: str, kind: str, *, param: str | None = None, headers: Headers | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.headers = headers or []

    def body(self) -> bytes:
        """OpenAI's object. What a client sent is not sent back at any length."""
        error = {
            "message": _shortened(self.message),
            "type": self.kind,
            "param": None if self.param is None else _shortened(self.param),
            "code": self.status,
        }
        return msgspec.json.encode({"error": error})


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "..."


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, "BadRequestError", param=param)


def not_supported(field: str, what: str = "is not supported by kvplan serve") -> ApiError:
    """A field whose effect a client counts on, and would not get."""
    return bad_request(f"'{field}' {what}.", field)


def model_not_found(name: str, served: tuple[str, ...]) -> ApiError:
    names = ", ".join(f"'{each}'" for each in served)
    return ApiError(404, f"The model '{name}' does not exist; served: {names}.", "NotFoundError", param="model")


def unavailable(message: str, *, retry_after_seconds: int = 1) -> ApiError:
    """503. The header x-should-retry keeps OpenAI's client from sending the request two more times."""
    headers = [(b"retry-after", str(retry_after_seconds).encode()), (b"x-should-retry", b"false")]
    return ApiError(503, message, "ServiceUnavailableError", headers=headers)
