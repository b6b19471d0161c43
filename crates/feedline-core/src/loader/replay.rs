//! Makes samples of an epoch again, alone: which samples a batch has, and an epoch of chosen samples.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Loader, Progress};
use crate::engine::Membership;
use crate::error::{Error, Kind, Result};
use crate::plan::RestOrder;

/// The epochs that can be replayed: positions of later ones are not exact.
const MOST_POSITIONS: u64 = 1 << 53;

/// The samples of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchMembers {
    /// The numbers of its samples in the epoch, of which none was left out.
    Numbers(Vec<u64>),
    /// They depend on the samples before them: some are filtered, sorted into buckets, or read in sequence.
    DependOnEarlier,
}

impl Loader {
    /// The epoch that runs, or was begun last.
    pub fn newest_epoch(&self) -> u64 {
        self.shared.newest_epoch.load(Ordering::Relaxed)
    }

    /// The samples of a batch of this rank, if no sample of the epoch was left out.
    pub fn batch_members(&self, epoch: u64, batch: u64) -> Result<BatchMembers> {
        self.check_epoch(epoch)?;
        let shared = &self.shared;
        let progress = shared.progress.lock().clone();
        if progress.epoch == epoch && progress.rest.is_some() {
            let message = format!(
                "batches of epoch {epoch} cannot be replayed: it was begun with another number of ranks"
            );
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("replay single samples with replay(index=...)"));
        }
        let samples = shared.plan.epoch_len();
        let settings = shared.engine_settings_of(epoch, samples, shared.plan.world());
        match settings.membership {
            Membership::Fixed => {}
            Membership::Gathered | Membership::Buckets(_) | Membership::Unordered => {
                return Ok(BatchMembers::DependOnEarlier);
            }
        }
        if batch >= self.len() {
            let message = format!("there is no batch {batch}: an epoch has {} batches", self.len());
            return Err(
                Error::new(Kind::InvalidArgument, message).with_hint("batches count from 0")
            );
        }
        let first = batch * settings.batch_size;
        let places = first..samples.min(first + settings.batch_size);
        Ok(BatchMembers::Numbers(places.filter_map(|place| shared.plan.number_at(place)).collect()))
    }

    /// The number of a sample in an epoch.
    pub fn sample_number(&self, epoch: u64, index: u64) -> Result<u64> {
        self.check_epoch(epoch)?;
        self.shared.plan.find(epoch, index).ok_or_else(|| {
            let message = format!("sample {index} is not in epoch {epoch} of this loader");
            Error::new(Kind::InvalidArgument, message).with_hint(
                "the source may have fewer samples, or take(), skip(), shard() or exclude= leave it out",
            )
        })
    }

    /// Makes the next epoch one of these samples alone, in this order. They have the random numbers of the whole epoch.
    pub fn choose(&self, epoch: u64, numbers: Vec<u64>) -> Result<()> {
        self.check_epoch(epoch)?;
        let rest = Some(Arc::new(RestOrder::only(&self.shared.plan, numbers)));
        self.begin_at(Progress { rest, ..Progress::at_epoch(epoch) });
        Ok(())
    }

    /// Makes the next epoch the whole of this one.
    pub fn begin_epoch(&self, epoch: u64) -> Result<()> {
        self.check_epoch(epoch)?;
        self.begin_at(Progress::at_epoch(epoch));
        Ok(())
    }

    fn begin_at(&self, progress: Progress) {
        *self.shared.progress.lock() = progress;
        self.shared.resumed.store(true, Ordering::SeqCst);
    }

    fn check_epoch(&self, epoch: u64) -> Result<()> {
        self.check()?;
        let samples = self.shared.plan.epoch_len().max(1);
        match epoch.checked_mul(samples) {
            Some(position) if position <= MOST_POSITIONS => Ok(()),
            Some(_) | None => {
                let message = format!("epoch {epoch} is too large");
                Err(Error::new(Kind::InvalidArgument, message))
            }
        }
    }
}
