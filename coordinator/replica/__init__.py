"""The life cycle of one replica: workers, loading, epoch, canary, serving, failure."""
