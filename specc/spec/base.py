"""What all spec models share: frozen, strict, closed; and the bounded number types."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A frozen mapping of a spec: unknown keys, coercions, NaN and infinities are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


# Upper bounds are far above any real model; they keep hostile sizes away from arithmetic and allocation.
Count = Annotated[int, Field(ge=1, le=4096)]
Width = Annotated[int, Field(ge=1, le=1 << 20)]
Vocabulary = Annotated[int, Field(ge=2, le=1 << 24)]
Positions = Annotated[int, Field(ge=2, le=1 << 27)]
Epsilon = Annotated[float, Field(gt=0, le=1e-2)]
Theta = Annotated[float, Field(gt=1, le=1e12)]
FolderPath = Annotated[str, Field(min_length=1, max_length=1024)]
