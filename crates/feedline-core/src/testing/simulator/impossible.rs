//! Events that contradict the state of the supervisor, which it must ignore.

use super::SimulatedWorld;
use crate::worker::supervisor::{ExitKind, Incarnation, WorkerEvent, WorkerId};

impl SimulatedWorld {
    pub(super) fn stray(&mut self) -> bool {
        let strays = self.random.chance(self.rates.stray);
        self.report.strays += u64::from(strays);
        strays
    }

    /// Sends impossible events, which the supervisor must ignore: repetitions, and messages of
    /// workers that never existed.
    pub(super) fn notify_impossible(&mut self, echo: WorkerEvent) -> Result<(), String> {
        let worker_id = self.random.below(10) as WorkerId;
        let incarnation = Incarnation { worker_id, generation: 1_000 };
        let task = self.random.below(40);
        let impossible = [
            WorkerEvent::TaskDone { incarnation, task },
            WorkerEvent::Survived { incarnation, task },
            WorkerEvent::Renew { incarnation },
            WorkerEvent::Renew { incarnation: Incarnation { worker_id, generation: 0 } },
            WorkerEvent::Survived { incarnation: Incarnation { worker_id, generation: 0 }, task },
            WorkerEvent::Ended { incarnation, exit: ExitKind::Exited(0), at: None, shortage: None },
            WorkerEvent::RoomSeen { is_enough: true },
            WorkerEvent::Ready { incarnation },
            WorkerEvent::StartFailed { incarnation },
            WorkerEvent::Refused { incarnation, transient: false },
            WorkerEvent::TimePassed,
            WorkerEvent::Submitted { task: 0, worker_id: None },
            WorkerEvent::Retire { worker_id: 1_000 },
            WorkerEvent::HungUp { incarnation },
            WorkerEvent::ZygoteAnswered { ping: Some(1_000_000) },
            WorkerEvent::ZygoteAnswered { ping: None },
        ];
        let is_echo = match echo {
            WorkerEvent::Ended { .. }
            | WorkerEvent::Ready { .. }
            | WorkerEvent::TaskDone { .. }
            | WorkerEvent::Survived { .. }
            | WorkerEvent::Observed { .. }
            | WorkerEvent::HungUp { .. }
            | WorkerEvent::ZygoteStarted
            | WorkerEvent::ZygoteReady
            | WorkerEvent::ZygoteAnswered { .. }
            | WorkerEvent::Refused { .. } => true,
            WorkerEvent::Submitted { .. }
            | WorkerEvent::ZygoteSeen { .. }
            | WorkerEvent::DescriptorsClosed
            | WorkerEvent::ZygoteEnded
            | WorkerEvent::StartFailed { .. }
            | WorkerEvent::Renew { .. }
            | WorkerEvent::RoomSeen { .. }
            | WorkerEvent::Retire { .. }
            | WorkerEvent::TimePassed
            | WorkerEvent::LongestSample { .. }
            | WorkerEvent::Restore { .. }
            | WorkerEvent::LimitWorkers { .. }
            | WorkerEvent::Close => false,
        };
        // Task 0 is new until the consumer has submitted it.
        let is_early = self.submitted == 0 && self.promises.is_running();
        let chosen = match (is_echo, is_early) {
            (true, _) if self.random.chance(500) => echo,
            (_, true) => WorkerEvent::TimePassed,
            (_, false) => self.random.one_of(impossible),
        };
        if let (WorkerEvent::ZygoteAnswered { .. }, Some(stuck)) = (chosen, &mut self.zygote_stuck)
        {
            // Any message of the zygote is a sign of life, so that it gets its patience again.
            stuck.asked = stuck.asked.map(|_| self.now);
        }
        self.notify(chosen)
    }
}
