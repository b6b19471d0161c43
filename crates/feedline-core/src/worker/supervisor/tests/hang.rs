//! Workers that neither answer nor use the processor, with a learned deadline.

use super::*;

const FIRST: Incarnation = Incarnation { worker_id: 0, generation: 0 };
const SHORTEST: Duration = Duration::from_secs(300);
const LONGEST: Duration = Duration::from_secs(540);
const INTERVAL: Duration = Duration::from_secs(15);

fn learned(action: HangAction) -> SupervisorSettings {
    let learned = LearnedDeadline { shortest: SHORTEST, longest: LONGEST, action };
    SupervisorSettings { deadline: Deadline::Learned(learned), hangs: 2, ..settings(1) }
}

/// A run with one worker, which has just been sent task 0.
fn busy(settings: SupervisorSettings) -> Healthy {
    let mut supervisor = ready(settings);
    submit(&mut supervisor, 0, Some(0));
    supervisor
}

/// A worker at a sample, which made no progress since the last check.
fn quiet() -> Observation {
    Observation {
        task: Some(0),
        offset: Some(3),
        since: NOW,
        work: WorkerActivity::Sample,
        asleep: false,
        stopped: false,
        is_dumping: false,
        has_progressed: false,
    }
}

fn working() -> Observation {
    Observation { has_progressed: true, ..quiet() }
}

/// Looks whenever it is time, and finds the worker as `seen` says. Returns the first actions, and when they came.
fn watch(
    supervisor: &mut Healthy,
    until: Duration,
    seen: impl Fn(Duration) -> Observation,
) -> Option<(Duration, Vec<SupervisorAction>)> {
    loop {
        let now = supervisor.next_deadline()?;
        if now > until {
            return None;
        }
        let mut actions = Vec::new();
        for incarnation in supervisor.workers_to_check(now) {
            let event = WorkerEvent::Observed { incarnation, seen: seen(now) };
            actions.extend(supervisor.handle(event, now));
        }
        actions.extend(supervisor.handle(WorkerEvent::TimePassed, now));
        if !actions.is_empty() {
            return Some((now, actions));
        }
    }
}

const FOREVER: Duration = Duration::from_secs(1_000_000);
const DUMPED: [SupervisorAction; 1] = [SupervisorAction::Dump { incarnation: FIRST }];
const KILLED_FIRST: [SupervisorAction; 1] = [SupervisorAction::Kill { incarnation: FIRST }];

#[test]
fn a_worker_that_hangs_is_dumped_and_killed_after_the_shortest_time() {
    let mut supervisor = busy(learned(HangAction::Restart));
    let (at, actions) = watch(&mut supervisor, FOREVER, |_| quiet()).unwrap();
    assert_eq!(actions, DUMPED);
    // The first check comes after one interval.
    assert!(at >= NOW + SHORTEST && at <= NOW + SHORTEST + INTERVAL * 2, "{at:?}");
    let (_, actions) = watch(&mut supervisor, FOREVER, |_| quiet()).unwrap();
    assert_eq!(actions, KILLED_FIRST);
    // The death is a hang of its sample, and the sample is retried.
    let actions = end(&mut supervisor, FIRST, KILLED, at + DUMP);
    let [SupervisorAction::Died(death), SupervisorAction::Fork { .. }] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert!(death.overdue && death.replaced);
}

#[test]
fn a_sample_that_hangs_again_is_given_up() {
    let mut supervisor = busy(learned(HangAction::Restart));
    let mut given_up = Vec::new();
    for generation in 0..2 {
        let incarnation = incarnation(0, generation);
        let (_, actions) = watch(&mut supervisor, FOREVER, |_| quiet()).unwrap();
        assert_eq!(actions, [SupervisorAction::Dump { incarnation }]);
        let (now, actions) = watch(&mut supervisor, FOREVER, |_| quiet()).unwrap();
        assert_eq!(actions, [SupervisorAction::Kill { incarnation }]);
        let event = WorkerEvent::Ended { incarnation, exit: KILLED, at: Some(3), shortage: None };
        let actions = supervisor.handle(event, now);
        given_up.push(
            actions.iter().any(|action| matches!(action, SupervisorAction::GiveUp { task: 0, .. })),
        );
        let next = Incarnation { worker_id: 0, generation: generation + 1 };
        supervisor.handle(WorkerEvent::Ready { incarnation: next }, now);
    }
    assert_eq!(given_up, [false, true]);
}

#[test]
fn a_worker_that_uses_the_processor_is_never_killed() {
    let mut supervisor = busy(learned(HangAction::Restart));
    assert_eq!(watch(&mut supervisor, Duration::from_secs(100_000), |_| working()), None);
    // Now and then is enough.
    let sometimes = |now: Duration| Observation {
        has_progressed: now.as_secs() % 200 < INTERVAL.as_secs(),
        ..quiet()
    };
    assert_eq!(watch(&mut supervisor, Duration::from_secs(200_000), sometimes), None);
}

#[test]
fn a_worker_that_computes_and_then_hangs_is_found_after_the_time_without_progress() {
    let mut supervisor = busy(learned(HangAction::Restart));
    let computes_until = Duration::from_secs(5_000);
    let seen = |now| if now < computes_until { working() } else { quiet() };
    let (at, actions) = watch(&mut supervisor, FOREVER, seen).unwrap();
    assert_eq!(actions, DUMPED);
    let least = computes_until + SHORTEST - INTERVAL;
    assert!(at >= least && at <= computes_until + SHORTEST + INTERVAL * 2, "{at:?}");
}

#[test]
fn the_time_is_twenty_times_the_longest_sample_and_less_than_ten_minutes() {
    for (longest_sample, expected) in [(0, 300), (15, 300), (20, 400), (27, 540), (3_600, 540)] {
        let mut supervisor = busy(learned(HangAction::Restart));
        let took = Duration::from_secs(longest_sample);
        assert_eq!(supervisor.handle(WorkerEvent::LongestSample { took }, NOW), []);
        // A shorter one later changes nothing.
        let took = Duration::from_secs(1);
        assert_eq!(supervisor.handle(WorkerEvent::LongestSample { took }, NOW), []);
        let (at, _) = watch(&mut supervisor, FOREVER, |_| quiet()).unwrap();
        let expected = NOW + Duration::from_secs(expected);
        assert!(at >= expected && at <= expected + INTERVAL * 2, "{longest_sample} s: {at:?}");
        assert!(at < Duration::from_secs(590));
    }
}

#[test]
fn another_sample_or_a_wait_for_memory_begins_the_time_anew() {
    let blocked = Observation { work: WorkerActivity::Blocked, ..quiet() };
    let elsewhere = Observation { offset: Some(4), ..quiet() };
    let again = Observation { since: NOW + Duration::from_secs(200), ..quiet() };
    for between in [blocked, elsewhere, again] {
        let mut supervisor = busy(learned(HangAction::Restart));
        let changed = NOW + Duration::from_secs(290);
        let seen = |now| if now < changed || now > changed + INTERVAL { quiet() } else { between };
        let (at, actions) = watch(&mut supervisor, FOREVER, seen).unwrap();
        assert_eq!(actions, DUMPED);
        assert!(at >= changed + SHORTEST, "{between:?}: {at:?}");
    }
    // Such a wait has no deadline at all, unless the worker is stopped.
    let mut supervisor = busy(learned(HangAction::Restart));
    assert_eq!(watch(&mut supervisor, Duration::from_secs(100_000), |_| blocked), None);
    let stopped = Observation { stopped: true, ..blocked };
    assert_eq!(watch(&mut supervisor, FOREVER, |_| stopped).unwrap().1, DUMPED);
}

#[test]
fn a_worker_that_continues_while_it_writes_its_stack_is_not_killed() {
    let mut supervisor = busy(learned(HangAction::Restart));
    let (at, actions) = watch(&mut supervisor, FOREVER, |_| quiet()).unwrap();
    assert_eq!(actions, DUMPED);
    assert_eq!(watch(&mut supervisor, at + Duration::from_secs(5_000), |_| working()), None);
}

#[test]
fn time_in_which_nobody_looked_counts_little() {
    let mut supervisor = busy(learned(HangAction::Restart));
    let look = |supervisor: &mut Healthy, now| {
        let event = WorkerEvent::Observed { incarnation: FIRST, seen: quiet() };
        supervisor.handle(event, now)
    };
    assert_eq!(look(&mut supervisor, NOW + INTERVAL), []);
    // The machine was suspended, and the trainer with it.
    let hours = Duration::from_secs(36_000);
    assert_eq!(look(&mut supervisor, NOW + hours), []);
    let (at, _) = watch(&mut supervisor, FOREVER, |_| quiet()).unwrap();
    assert!(at >= NOW + hours + SHORTEST - INTERVAL * 3, "{at:?}");
}

#[test]
fn a_worker_that_hangs_while_it_starts_gets_the_longest_time() {
    let mut supervisor = booting(learned(HangAction::Restart));
    let starting =
        Observation { task: None, offset: None, work: WorkerActivity::Starting, ..quiet() };
    let (at, actions) = watch(&mut supervisor, FOREVER, |_| starting).unwrap();
    assert_eq!(actions, DUMPED);
    assert!(at >= NOW + LONGEST && at <= NOW + LONGEST + INTERVAL * 2, "{at:?}");
    assert_eq!(watch(&mut supervisor, FOREVER, |_| starting).unwrap().1, KILLED_FIRST);
}

#[test]
fn a_call_that_hangs_is_reported_once_and_never_killed() {
    let mut supervisor = busy(learned(HangAction::Report));
    assert_eq!(watch(&mut supervisor, FOREVER, |_| quiet()).unwrap().1, DUMPED);
    let (_, actions) = watch(&mut supervisor, FOREVER, |_| quiet()).unwrap();
    assert_eq!(actions, [SupervisorAction::Stalled { incarnation: FIRST, seen: quiet() }]);
    assert_eq!(watch(&mut supervisor, FOREVER, |_| quiet()), None);
    // Not even if it waits for a lock that the fork may have copied: other calls would be repeated.
    let forked = SupervisorSettings { may_be_fresh: true, ..learned(HangAction::Report) };
    let mut supervisor = busy(forked);
    let asleep = Observation { asleep: true, ..quiet() };
    assert_eq!(watch(&mut supervisor, FOREVER, |_| asleep).unwrap().1, DUMPED);
    let (_, actions) = watch(&mut supervisor, FOREVER, |_| asleep).unwrap();
    assert_eq!(actions, [SupervisorAction::Stalled { incarnation: FIRST, seen: asleep }]);
}
