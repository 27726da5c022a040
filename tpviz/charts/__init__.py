"""Charts: bars, curves and maps by matplotlib, as the same kind of figure that a diagram is (charts)."""

from tpviz.charts.activations import Degree, KeptBytes, activations
from tpviz.charts.bars import layer_forward
from tpviz.charts.curves import Against, Curve, efficiencies
from tpviz.charts.foretold import Foretold, foretold
from tpviz.charts.losses import Losses, losses
from tpviz.charts.maps import Mark, speed_map
from tpviz.charts.times import breakdowns, published, timelines
from tpviz.charts.ways import Way, ways

__all__ = [
    "Against",
    "Curve",
    "Degree",
    "Foretold",
    "KeptBytes",
    "Losses",
    "Mark",
    "Way",
    "activations",
    "breakdowns",
    "efficiencies",
    "foretold",
    "layer_forward",
    "losses",
    "published",
    "speed_map",
    "timelines",
    "ways",
]
