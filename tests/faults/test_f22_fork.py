"""F22: fork with threads, vfork, posix_spawn.

Nothing of the preload library's can be left locked or half done in a child.
"""

from tests.preload.covered import CoveredSource

pytest_plugins = ["tests.preload.fixtures"]


def test_f22_children_of_a_process_with_threads_open_as_their_parent_does(covered: CoveredSource) -> None:
    ran = covered.program("fork")
    assert ran.hits > 1000
    assert ran.counters["pass_copy_gone"] == 0


def test_f22_forked_workers_of_python_hit(covered: CoveredSource) -> None:
    script = """
os.close(copy("f1"))
import multiprocessing as mp, threading

def work(number):
    fd = os.open(f"f{number}", os.O_RDONLY)
    return is_copy(fd), os.read(fd, 99)

if __name__ == "__main__":
    threads = [threading.Thread(target=lambda: [open("f0").close() for _ in range(2000)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    with mp.get_context("fork").Pool(4) as pool:
        for number, (hit, data) in enumerate(pool.map(work, range(40), chunksize=1)):
            assert hit and data == f"file {number}\\n".encode()
    for thread in threads:
        thread.join()
"""
    covered.python(script)
