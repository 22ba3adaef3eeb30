"""The roofline picture: points lie where hand arithmetic puts them, and the file is well-formed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import plot_roofline
from plot_roofline import Axes, draw, fit_axes, read_points


def make_report() -> dict[str, Any]:
    limits = {
        name: {"best": best, "median": best}
        for name, best in (("read_bytes_per_s", 30e9), ("int8_ops_per_s", 900e9), ("f32_ops_per_s", 200e9))
    }
    # Decode: 0.2 Gop on 100 MB in 4 ms. Prefill: 110 Gop on 100 MB in 250 ms.
    results = [
        ("prefill", 1, {"num_bytes": 1e8, "num_int8_ops": 1e11, "num_f32_ops": 1e10}, 0.25, 65.0),
        ("decode", 1, {"num_bytes": 1e8, "num_int8_ops": 2e8, "num_f32_ops": 0.0}, 4e-3, 83.0),
    ]
    return {
        "model": "/models/a<b>.gguf",
        "machine": {"cpu": "Fast & Co", "isa": "avx512", "threads": 2, "limits": limits},
        "results": [
            {
                "test": test, "concurrency": n, "prompt_tokens": 512, "new_tokens": 128, "depth": 0, "cost": cost,
                "duration_s": duration_s, "pct_of_roofline": pct,
            }
            for test, n, cost, duration_s, pct in results
        ],
    }  # fmt: skip


def test_points_have_intensity_and_speed_of_their_phase() -> None:
    prefill, decode = read_points(make_report())
    assert (prefill.label, prefill.ops_per_byte, prefill.ops_per_s) == ("prefill 1 x 512 tokens", 1100.0, 440e9)
    assert decode.label == "decode 1 x 1 token"
    assert decode.ops_per_byte == pytest.approx(2.0)
    assert decode.ops_per_s == pytest.approx(50e9)


def test_axes_hold_all_points_and_roofs_and_are_logarithmic() -> None:
    report = make_report()
    axes = fit_axes(read_points(report), report["machine"]["limits"])
    assert axes == Axes(0, 4, 10, 13)
    assert axes.x(100.0) - axes.x(10.0) == pytest.approx(axes.x(10.0) - axes.x(1.0))
    assert axes.y(1e10) == plot_roofline.HEIGHT - plot_roofline.BOTTOM
    assert axes.y(1e13) == plot_roofline.TOP


def test_picture_is_well_formed_and_names_the_machine(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(json.dumps(make_report()))
    assert plot_roofline.main([str(tmp_path / "bench.json"), str(tmp_path / "roofline.svg")]) == 0
    picture = ElementTree.parse(tmp_path / "roofline.svg")
    words = " | ".join(picture.getroot().itertext())
    for expected in ("a<b>.gguf on Fast & Co", "memory 30.0 GB/s", "int8 900 Gop/s", "b  decode 1 x 1 token: 83 %"):
        assert expected in words
    assert draw(make_report()).count("<circle") == 4  # two points, and their explanation


def test_wrong_number_of_arguments_is_refused() -> None:
    assert plot_roofline.main(["one"]) == 2
