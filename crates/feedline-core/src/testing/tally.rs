//! Counts what happened in simulated runs: a failure that never happens is not tested.

macro_rules! report {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// How many times each thing happened, in one run or in many.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct SimulationReport { $($(#[doc = $doc])* pub $name: u64,)* }

        impl SimulationReport {
            /// Adds what happened in another run.
            pub fn add(&mut self, other: &SimulationReport) { $(self.$name += other.$name;)* }

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
    /// Results that were accepted.
    accepted,
    /// Results that were discarded.
    discarded,
    /// Results that were accepted from a worker that was dead already.
    crossings,
    /// Results that were sent before an older one of the same worker.
    overtakings,
    /// Tasks that were sent again.
    resent,
    /// Tasks that were given up because they kill.
    given_up_for_kills,
    /// Tasks that were given up because they hang.
    given_up_for_hangs,
    /// Tasks that always kill and were given up.
    poison_found,
    /// Trials that were begun.
    trials,
    /// Trials that were survived.
    trials_survived,
    /// Trials that ended with a result.
    trials_answered,
    /// Workers that were needed again after they had retired.
    restored,
    /// Times that another number of workers was allowed to have tasks.
    limited,
    /// Steps after which a worker without a task had to wait for its turn.
    held_back,
    /// Processes that ended because fewer may run.
    surplus_ended,
    /// Looks at workers.
    looks,
    /// Looks that were missed.
    looks_missed,
    /// Stack dumps of workers.
    dumps,
    /// Workers killed by the supervisor because they exceeded the deadline.
    kills_overdue,
    /// Workers killed because of a learned deadline.
    kills_learned,
    /// Workers that hang and use the processor.
    spins,
    /// Workers that finished a task while they were being killed for being late with it.
    answers_overdue,
    /// Workers that stalled.
    stalls,
    /// Runs that restarted from a fresh zygote.
    fresh_restarts,
    /// Zygotes that stopped answering.
    zygotes_stuck,
    /// Zygotes that continued after they had stopped answering.
    zygotes_continued,
    /// Zygotes that were logged as slow.
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
    renewed,
    /// Successors that could not start.
    successors_failed,
    /// Workers that died before they were ready.
    deaths_booting,
    /// Workers that died without a task.
    deaths_idle,
    /// Workers that died with a task.
    deaths_busy,
    /// Workers that died after they were asked to stop.
    deaths_stopping,
    /// Workers that ended with their zygote.
    deaths_lost,
    /// Zygotes that died after they were ready.
    zygote_deaths,
    /// Zygotes that died before they were ready.
    zygote_failures,
    /// Workers that ended because something was short.
    shortages,
    /// Times that fewer processes could run than before.
    capacity_reduced,
    /// Times that more processes could run than before.
    capacity_increased,
    /// Forks refused for a transient reason.
    refusals_transient,
    /// Forks refused for a permanent reason.
    refusals_permanent,
    /// Workers that reported that they cannot start.
    start_failures,
    /// Workers or zygotes that hung until they were killed.
    hangs,
    /// Workers that were slow to start.
    slow_starts,
    /// Workers killed by the supervisor while starting.
    kills_booting,
    /// Workers killed by the supervisor that did not stop when the run ended.
    kills_after_grace,
    /// Workers killed by the supervisor that did not stop when they were retired.
    kills_retired,
    /// Workers that ended by themselves while a kill was on its way.
    deaths_while_killed,
    /// Kills that took longer than closing may take.
    kills_too_slow,
    /// Workers that retired.
    retirements,
    /// Retired workers that were needed again.
    reactivations,
    /// Events that cannot occur.
    strays,
    /// Runs without failures.
    failure_free,
    /// Runs whose every task got a result.
    finished,
    /// Runs closed in the middle.
    closed_early,
    /// Runs closed because something hung.
    closed_hanging,
    /// Runs closed because they took too many steps.
    closed_impatient,
    /// Runs that ended by `TooManyDeaths`.
    failed_too_many_deaths,
    /// Runs that ended by `Death`.
    failed_death,
    /// Runs that ended by `CannotStart`.
    failed_cannot_start,
    /// Runs that ended by `DiesStarting`.
    failed_dies_starting,
    /// Runs that ended by `Refused` for a transient reason.
    failed_refused_transient,
    /// Runs that ended by `Refused` for a permanent reason.
    failed_refused_permanent,
    /// Runs that ended by `ZygoteCannotStart`.
    failed_zygote,
    /// Runs that ended by `ZygoteHangs`.
    failed_zygote_hangs,
    /// Runs that ended by `DescriptorsClosed`.
    failed_descriptors_closed,
}
