"""The real clients of KServe, unmodified, against a live server, in an environment of their own: `make kserve-test`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support.http_app import serving

from tensorpost import Client

PEERS = Path(os.environ.get("PEERS", "build/peers"))
KSERVE = PEERS / "kserve" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
PAGE = Path(__file__).parents[2] / "docs" / "open-inference.md"
CALLS = Path(__file__).with_name("kserve_calls.py")
EXPECTED = {
    "FP32": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]],
    "FP16": [[1.0, -0.5]],
    "INT64": [[-(2**40)], [7]],
    "BOOL": [[True, False]],
    "BYTES": [["a", "été"]],
}
NEGATIVE = {
    "inputs": {"x": {"data_type": "FLOAT32", "sizes": ["n", 3]}},
    "nodes": [{"name": "y", "op_type": "Neg", "inputs": ["x"]}],
    "outputs": {"y": "y"},
}


@pytest.mark.skipif(not KSERVE.exists(), reason=f"{KSERVE} is not there: kserve is 450 MB; make kserve-test")
def test_every_method_of_kserves_clients():
    (code,) = re.findall(r"```python\n(from kserve import .*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    with serving(grpc_port=0) as server:
        with Client(server.url) as tp:
            tp.store(NEGATIVE, "negative", max_batch_size=8)
        command = [str(KSERVE), "-W", "ignore", str(CALLS), f"http://{server.host}:{server.port}"]
        command += [str(server.app.state.grpc_port), code.replace("http://localhost:8000", server.url)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={})

    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert len(found["arrays"]) == 4 * 7 + 1
    for datatype, elements in found["arrays"]:
        assert elements == np.tile(np.array(EXPECTED[datatype], object), (1, 2)).tolist()
    assert found["states"] == [True] * 6 + [False]
    assert found["explanation"].startswith("Unsupported protocol v2")
    assert found["stored"] == [[[0, -1, -2], [-3, -4, -5]]] * 2
    assert all("did you mean 'tile'" in refusal for refusal in found["refusals"])
