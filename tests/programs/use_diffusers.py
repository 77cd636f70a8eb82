"""diffusers: DDPMPipeline.from_pretrained(), and an image of two steps."""
import torch
from diffusers import DDPMPipeline
from program import main


def load(path):
    return DDPMPipeline.from_pretrained(path)


def output(pipeline):
    pipeline.set_progress_bar_config(disable=True)
    return pipeline(num_inference_steps=2, generator=torch.Generator().manual_seed(0), output_type="np").images.tobytes()


def parameters(pipeline):
    return pipeline.unet.parameters()


if __name__ == "__main__":
    main(load, output, parameters)
