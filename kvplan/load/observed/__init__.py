"""What a run showed: of the client, of the server, and what bound it.

health    the client itself: lag of its event loop, CPU, lateness; whether it was the limit
monitor   the server's metrics, read four times per second while the load runs; each of several engines behind one
          address
verdict   what bound the run: KV, seats, compute, load or client
figures   all of it as columns of a row; the run over time, for the reports' pictures; each request as a line of
          requests.jsonl
"""
