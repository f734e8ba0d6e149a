"""The package as a library user meets it."""

import subprocess
import sys

import pytest

import papers.quip_sharp as quip_sharp


def test_importing_the_package_does_not_import_torch():
    code = "import sys, papers.quip_sharp as q; dir(q); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_three_names_are_exported_lazily():
    from papers.quip_sharp.linear import QuantLinear
    from papers.quip_sharp.quantize_llm import quantize_model
    from papers.quip_sharp.quantize_weight import quantize_linear

    assert quip_sharp.QuantLinear is QuantLinear
    assert quip_sharp.quantize_model is quantize_model
    assert quip_sharp.quantize_linear is quantize_linear
    assert {"QuantLinear", "quantize_model", "quantize_linear"} <= set(dir(quip_sharp))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = quip_sharp.nothing_like_it
