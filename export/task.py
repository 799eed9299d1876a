"""What a checkpoint was made for, as optimum knows it: text generation is exported, all else is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ops.errors import UnsupportedModel

TASK = "text-generation"


def check_task(config: dict[str, Any], folder: Path | None) -> None:
    """Refuse, by the name of its task or library, a checkpoint that does not generate text.

    Without this a classifier's body would be exported with a head that was never trained. Names that
    transformers does not know are left to the check of the family.
    """
    import transformers
    from optimum.exporters.tasks import TasksManager

    library = "transformers" if folder is None else TasksManager.infer_library_from_model(str(folder))
    if library != "transformers":
        raise UnsupportedModel(
            f"{folder} is a model of the library {library}.",
            why="Only text generation models of transformers are exported.",
            remedy="Choose the checkpoint of a language model.",
        )
    names = config.get("architectures")
    for name in names if isinstance(names, list) else []:
        known = getattr(transformers, str(name), None)
        if known is None:
            continue
        try:
            task = TasksManager.infer_task_from_model(known)
        except ValueError:
            task = "another task"
        if task != TASK:
            raise UnsupportedModel(
                f"The checkpoint is a {name}, made for {task}.",
                why="Only text generation is exported: the head of another task cannot continue a text.",
                remedy="Choose the ForCausalLM checkpoint of this model.",
                param="architectures",
            )
