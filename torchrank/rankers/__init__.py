"""One LightningModule per method; `core` holds what they share."""
