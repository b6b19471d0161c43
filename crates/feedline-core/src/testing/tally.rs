//! What happened in simulated runs, counted: a disaster that never happens is not tested.

macro_rules! report {
    ($($(#[doc = $messages:literal])* $name:ident,)*) => {
        /// How often what happened in a run, or in many.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct Report { $($(#[doc = $messages])* pub $name: u64,)* }

        impl Report {
            /// Adds what happened in another run.
            pub fn add(&mut self, other: &Report) { $(self.$name += other.$name;)* }

            /// Every count with its name.
            pub fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

report! {
    /// Steps of the supervisor.
    steps,
    /// Answers that were taken.
    accepted,
    /// Answers that were thrown away.
    discarded,
    /// Answers that were taken from a worker that was dead already.
    crossings,
    /// Answers that were given before an older one of the same worker.
    overtakings,
    /// Tasks that were sent again.
    resent,
    /// Tasks that were given up because they kill.
    gives_up_kills,
    /// Tasks that were given up because they hang.
    gives_up_hangs,
    /// Tasks that always kill and were given up.
    poison_found,
    /// Trials that were begun.
    trials,
    /// Trials that were survived.
    trials_survived,
    /// Trials that ended with an answer.
    trials_answered,
    /// Looks at workers.
    looks,
    /// Looks that did not happen.
    looks_missed,
    /// Dumps of workers.
    dumps,
    /// Workers killed by the supervisor because they passed the deadline.
    kills_overdue,
    /// Workers that came to the end of a task while they were killed for being late with it.
    answers_overdue,
    /// Workers that stalled.
    stalls,
    /// Runs that started again from a fresh zygote.
    rebirths,
    /// Zygotes that stopped answering.
    zygotes_stuck,
    /// Zygotes that went on after they had stopped answering.
    zygotes_went_on,
    /// Zygotes that were told of as slow.
    zygotes_slow,
    /// Zygotes that were killed because they hung.
    zygotes_hung,
    /// Zygotes that did not end when asked.
    zygotes_stubborn,
    /// Workers that leaked.
    leaks,
    /// Workers that took over from another.
    successions,
    /// Workers that were renewed and ended well.
    retired,
    /// Workers that were to take over and could not start.
    successors_failed,
    /// Workers that died before they were ready.
    deaths_booting,
    /// Workers that died without a task.
    deaths_idle,
    /// Workers that died with a task.
    deaths_busy,
    /// Workers that died after they were asked to stop.
    deaths_stopping,
    /// Workers that went with their zygote.
    deaths_lost,
    /// Zygotes that died after they were ready.
    zygote_deaths,
    /// Zygotes that died before.
    zygote_failures,
    /// Forks refused for a reason that passes.
    refusals_passing,
    /// Forks refused for one that does not.
    refusals_lasting,
    /// Workers that said that they cannot start.
    start_failures,
    /// Workers or zygotes that hung until they were killed.
    hangs,
    /// Workers that were slow to start.
    slow_starts,
    /// Workers killed by the supervisor while starting.
    kills_booting,
    /// Workers killed by the supervisor that did not stop when the run ended.
    kills_after_grace,
    /// Workers killed by the supervisor that did not stop when their worker retired.
    kills_retired,
    /// Workers that ended by themselves while a kill was on its way.
    deaths_while_killed,
    /// Kills that took longer than closing may.
    kills_too_slow,
    /// workers that retired.
    retirements,
    /// workers that came back.
    comebacks,
    /// Happenings that cannot be.
    strays,
    /// Runs in good weather.
    calm,
    /// Runs whose every task got a result.
    finished,
    /// Runs closed in the middle.
    closed_early,
    /// Runs closed because something hung.
    closed_hanging,
    /// Runs closed because they went on and on.
    closed_impatient,
    /// Runs that ended by `TooManyDeaths`.
    failed_too_many_deaths,
    /// Runs that ended by `Death`.
    failed_death,
    /// Runs that ended by `CannotStart`.
    failed_cannot_start,
    /// Runs that ended by `DiesStarting`.
    failed_dies_starting,
    /// Runs that ended by `Refused` for a reason that passes.
    failed_refused_passing,
    /// Runs that ended by `Refused` for one that does not.
    failed_refused_lasting,
    /// Runs that ended by `ZygoteCannotStart`.
    failed_zygote,
    /// Runs that ended by `ZygoteHangs`.
    failed_zygote_hangs,
    /// Runs that ended by `DescriptorsClosed`.
    failed_descriptors_closed,
}
