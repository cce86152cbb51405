"""Worker processes that reduce one trace each at a time: one that dies costs its trace, after a second try.

They are processes of this program and no copies of it: nothing of the caller's main module is run again in them, and
they end with the pipe to their parent, however that ends.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import IO, Final

from msgspec import Struct, field

from opanatomy.cluster.work import Outcome, Task

#: How often a trace is tried whose worker dies.
_TRIES: Final = 2
_LENGTH: Final = struct.Struct("<Q")
_POLL_SECONDS: Final = 0.2


class _Died(Exception):
    """The worker is gone; the message says how."""


class _Worker:
    """A process at the other end of two pipes."""

    def __init__(self) -> None:
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; sys.argv = {sys.argv!r}; "
            f"from {serve.__module__} import {serve.__name__} as serve; serve()"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=os.name == "posix",
        )  # fmt: skip

    def done(self, task: Task) -> Outcome | BaseException:
        """What became of a task, or what it raised; `_Died` where the process did."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            _send(self.process.stdin, task)
            answer: Outcome | BaseException = _receive(self.process.stdout)
        except (OSError, EOFError, ValueError) as error:
            self.process.kill()
            raise _Died(_how(self.process.wait())) from error
        return answer

    def end(self) -> None:
        """Kill it, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what it did not read is still in the pipe
                    continue


class _Shared(Struct):
    """What the threads that wait for workers share."""

    tasks: Iterator[Task]
    answers: queue.Queue[Outcome | BaseException]
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)
    workers: list[_Worker] = field(default_factory=list)

    def next_task(self) -> Task | None:
        with self.lock:
            return None if self.over.is_set() else next(self.tasks, None)

    def started(self) -> _Worker | None:
        """A new worker; none once it is over."""
        with self.lock:
            if self.over.is_set():
                return None
            worker = _Worker()
            self.workers.append(worker)
            return worker

    def ended(self, worker: _Worker) -> None:
        with self.lock:
            self.workers.remove(worker)
        worker.end()

    def tell(self, answer: Outcome | BaseException) -> None:
        """Hand an answer to the main thread, which may be behind."""
        while not self.over.is_set():
            try:
                self.answers.put(answer, timeout=_POLL_SECONDS)
                return
            except queue.Full:
                continue


def pooled(tasks: Sequence[Task], jobs: int) -> Generator[Outcome, None, None]:
    """The outcomes as they come, by that many worker processes; these are gone when the iterator is closed."""
    shared = _Shared(tasks=iter(tasks), answers=queue.Queue(maxsize=2 * jobs))
    threads = [threading.Thread(target=_drive, args=(shared,), daemon=True) for _ in range(jobs)]
    try:
        for thread in threads:
            thread.start()
        for _ in tasks:
            answer = _next_answer(shared, threads)
            if isinstance(answer, BaseException):
                raise answer
            yield answer
    finally:
        shared.over.set()
        with shared.lock:
            workers = list(shared.workers)
        for worker in workers:
            worker.process.kill()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


def _next_answer(shared: _Shared, threads: list[threading.Thread]) -> Outcome | BaseException:
    while True:
        try:
            return shared.answers.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if not any(thread.is_alive() for thread in threads) and shared.answers.empty():
                raise RuntimeError("the threads that wait for worker processes have ended") from None


def _drive(shared: _Shared) -> None:
    """Give tasks to a worker until there are none."""
    worker: _Worker | None = None
    try:
        while (task := shared.next_task()) is not None:
            why = ""
            for _ in range(_TRIES):
                worker = worker or shared.started()
                if worker is None:
                    return
                try:
                    shared.tell(worker.done(task))
                    break
                except _Died as error:
                    why = str(error)
                    shared.ended(worker)
                    worker = None
            else:
                shared.tell(Outcome(place=task.place, lost=f"the process that analyzed it {why}, twice"))
    except BaseException as error:  # it is raised where the outcomes are waited for
        shared.tell(error)
    finally:
        if worker is not None:
            shared.ended(worker)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
    return f"was killed ({name}{': not enough memory?' if name == 'SIGKILL' else ''})"


def _send(pipe: IO[bytes], value: object) -> None:
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Outcome | BaseException:
    data = _exactly(pipe, _LENGTH.unpack(_exactly(pipe, _LENGTH.size))[0])
    answer: Outcome | BaseException = pickle.loads(data)
    return answer


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


# ------------------------------------------------------------------------------------------------------- in the worker


def serve() -> None:
    """Do what comes in by stdin until it ends; what the work prints goes to stderr."""
    import gc

    from opanatomy.cluster.work import packed_done

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    gc.disable()  # an analysis makes objects by the hundred thousand and no cycles among them
    while size := requests.read(_LENGTH.size):
        task: Task = pickle.loads(_exactly(requests, _LENGTH.unpack(size)[0]))
        try:
            answer: Outcome | BaseException = packed_done(task)
        except Exception as error:
            answer = error
        try:
            _send(answers, answer)
        except BrokenPipeError:
            os._exit(1)  # the parent is gone
        gc.collect(0)
    os._exit(0)
