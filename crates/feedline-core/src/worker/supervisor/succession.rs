//! A worker that leaks is replaced without a pause: its successor starts while it still works, and
//! then takes the post over.

use std::time::Duration;

use super::place::{Standing, Worker};
use super::words::{Action, Life};
use super::{Supervisor, Watch, Zygote};

/// After a successor could not start, none is tried for so long.
pub(super) const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

impl Supervisor {
    pub(super) fn renew(&mut self, life: Life) {
        let can_fork = self.is_running() && self.zygote == Zygote::Ready;
        let Some(place) = self.places.get_mut(life.post as usize) else { return };
        let is_at_work = |worker: &Worker| {
            worker.life == life && worker.standing == Standing::Ready && worker.trial.is_none()
        };
        let is_alone = place.successor.is_none() && place.predecessor.is_none();
        let has_waited = self.now >= place.renew_after;
        // Who is alone on a post that has retired was asked to stop, so it is not at work.
        if can_fork && is_alone && has_waited && place.holder.as_ref().is_some_and(is_at_work) {
            let life = place.next_life();
            place.successor = Some(Worker::new(life, Watch::starting(&self.settings, self.now)));
            self.actions.push(Action::Fork { life });
        }
    }

    /// A successor is ready: it holds the post from now on, and its predecessor ends after what it
    /// has at hand.
    pub(super) fn take_over(&mut self, life: Life) {
        let place = &mut self.places[life.post as usize];
        place.predecessor = std::mem::replace(&mut place.holder, place.successor.take());
        if let Some(predecessor) = &mut place.predecessor
            && predecessor.standing == Standing::Ready
        {
            ask_to_stop(predecessor, self.now, self.settings.grace, &mut self.actions);
        }
    }
}

/// Asks a worker that is ready to end after what it has at hand.
pub(super) fn ask_to_stop(
    worker: &mut Worker,
    now: Duration,
    grace: Duration,
    actions: &mut Vec<Action>,
) {
    let kill_at = worker.at_hand.is_empty().then(|| now.saturating_add(grace));
    worker.standing = Standing::Stopping { kill_at };
    actions.push(Action::Stop { life: worker.life });
}
