"""Imports every family, so that its ops are registered."""

from __future__ import annotations

from specc.backends.ascend.harness.evaluator import (
    cast as cast,
)
from specc.backends.ascend.harness.evaluator import (
    constant as constant,
)
from specc.backends.ascend.harness.evaluator import (
    gather as gather,
)
from specc.backends.ascend.harness.evaluator import (
    layout as layout,
)
from specc.backends.ascend.harness.evaluator import (
    matmul as matmul,
)
from specc.backends.ascend.harness.evaluator import (
    pointwise as pointwise,
)
from specc.backends.ascend.harness.evaluator import (
    reduce as reduce,
)
from specc.backends.ascend.harness.evaluator import (
    select as select,
)
