"""sentence-transformers: SentenceTransformer(path), and the embeddings of two sentences."""
from program import main
from sentence_transformers import SentenceTransformer


def load(path):
    return SentenceTransformer(path, device="cpu")


def output(model):
    return model.encode(["the cat sat on a mat", "many small weights"]).tobytes()


def parameters(model):
    return model.parameters()


if __name__ == "__main__":
    main(load, output, parameters)
