"""Training a tiny task model on a handful of examples, without the runner."""

import torch


def fit(model, examples, *, steps, lr=0.03):
    """Some steps of Adam on all examples at once; the loss before each. The model is in evaluation mode after it."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    losses = []
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model.loss(examples)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses


@torch.no_grad()
def predict(model, examples):
    return model.eval().predict(examples)
