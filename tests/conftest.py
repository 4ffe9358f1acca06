"""One cache directory for a whole test run, thrown away after it: tests neither read nor write the user's."""
import os
import shutil
import tempfile


def pytest_configure(config):
    if hasattr(config, "workerinput"):      # a worker of pytest-xdist inherits the environment of the first process
        return
    place = tempfile.mkdtemp(prefix="neuron-eager-tests-")
    os.environ["NEURON_EAGER_CACHE_DIR"] = place
    config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
