"""The parts that compute each token by itself: MLPs and mixtures of experts."""
