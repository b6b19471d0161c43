//! Workers that make no progress.

use super::*;

const DEADLINE: Duration = Duration::from_secs(10);
const STALL: Duration = Duration::from_secs(4);
const FIRST: Life = Life { post: 0, generation: 0 };

fn sample(task: Task, position: u64, since: Duration) -> Seen {
    Seen {
        task: Some(task),
        position: Some(position),
        since,
        work: Work::Sample,
        asleep: false,
        stopped: false,
        is_dumping: false,
    }
}

fn starting(since: Duration) -> Seen {
    Seen {
        task: None,
        position: None,
        since,
        work: Work::Starting,
        asleep: false,
        stopped: false,
        is_dumping: false,
    }
}

/// The engine wakes when it was told to, looks where it was told to, and finds this.
fn look(supervisor: &mut Healthy, life: Life, seen: Seen, now: Duration) -> Vec<Action> {
    assert!(supervisor.to_look_at(now).contains(&life), "nobody is to be looked at at {now:?}");
    let mut actions = supervisor.handle(Happening::Seen { life, seen }, now);
    assert!(!supervisor.to_look_at(now).contains(&life));
    actions.extend(supervisor.handle(Happening::TimePassed, now));
    actions
}

/// A run with one worker, which has just been sent task 0.
fn busy(settings: Settings) -> Healthy {
    let mut supervisor = ready(settings);
    submit(&mut supervisor, 0, Some(0));
    supervisor
}

fn with_deadline() -> Settings {
    Settings { deadline: Some(DEADLINE), ..settings(1) }
}

fn with_stall() -> Settings {
    Settings { stall: Some(STALL), ..settings(1) }
}

#[test]
fn without_a_deadline_or_a_stall_nobody_is_looked_at() {
    let mut supervisor = busy(settings(1));
    assert_eq!(supervisor.next_deadline(), None);
    let seen = Happening::Seen { life: FIRST, seen: sample(0, 0, NOW) };
    assert_eq!(supervisor.handle(seen, Duration::from_secs(1_000_000)), []);
    assert_eq!(supervisor.handle(seen, Duration::from_secs(2_000_000)), []);
}

#[test]
fn a_worker_stopped_before_it_began_its_task_is_late_too_and_the_task_is_not_to_blame() {
    let mut supervisor = busy(with_deadline());
    let waiting = Seen { work: Work::Waiting, ..starting(Duration::ZERO) };
    let late = NOW + DEADLINE;
    assert_eq!(look(&mut supervisor, FIRST, waiting, late), [Action::Dump { life: FIRST }]);
    let dumped = supervisor.next_deadline().unwrap();
    assert_eq!(look(&mut supervisor, FIRST, waiting, dumped), [Action::Kill { life: FIRST }]);
    let ended = Happening::Ended { life: FIRST, ending: Ending::Killed(9), at: None };
    let actions = supervisor.handle(ended, dumped);
    assert!(!actions.iter().any(|action| matches!(action, Action::GiveUp { .. })), "{actions:?}");
    let next = Life { post: 0, generation: 1 };
    let sent = supervisor.handle(Happening::Ready { life: next }, dumped);
    assert_eq!(sent, [Action::Send { life: next, task: 0, trial: None }]);
}

#[test]
fn a_worker_is_looked_at_no_earlier_than_it_can_be_late() {
    let mut supervisor = ready(with_deadline());
    assert_eq!(supervisor.next_deadline(), None);
    submit(&mut supervisor, 0, Some(0));
    let first = NOW + DEADLINE;
    assert_eq!(supervisor.next_deadline(), Some(first));
    assert_eq!(supervisor.to_look_at(NOW), []);
    let since = NOW + Duration::from_secs(7);
    assert_eq!(look(&mut supervisor, FIRST, sample(0, 3, since), first), []);
    assert_eq!(supervisor.next_deadline(), Some(since + DEADLINE));
    answer(&mut supervisor, FIRST, 0);
    assert_eq!(supervisor.next_deadline(), None);
}

#[test]
fn a_worker_that_passes_the_deadline_is_dumped_and_then_killed_and_it_counts_as_no_death() {
    let mut supervisor = busy(Settings { hangs: 2, max_deaths: 0, ..with_deadline() });
    submit(&mut supervisor, 1, Some(0));
    let late = NOW + DEADLINE;
    let hung = sample(0, 3, NOW);
    assert_eq!(look(&mut supervisor, FIRST, hung, late), [Action::Dump { life: FIRST }]);
    assert_eq!(supervisor.next_deadline(), Some(late + DUMP));
    let actions = look(&mut supervisor, FIRST, hung, late + DUMP);
    assert_eq!(actions, [Action::Kill { life: FIRST }]);
    assert_eq!(supervisor.next_deadline(), None);
    let actions = end(&mut supervisor, FIRST, KILLED, late + DUMP);
    let death = Death {
        life: FIRST,
        ending: KILLED,
        at: late + DUMP,
        stage: Stage::Busy,
        tasks: vec![0, 1],
        replaced: true,
        overdue: true,
    };
    assert_eq!(actions, [Action::Died(death), fork(0, 1)]);
    assert_eq!(is_ready(&mut supervisor, life(0, 1)), [send(0, 1, 0), send(0, 1, 1)]);
}

#[test]
fn a_sample_that_hangs_too_often_is_given_up_and_others_are_not_held_against_it() {
    let mut supervisor = busy(Settings { hangs: 2, ..with_deadline() });
    let mut now = NOW;
    for (generation, position) in [(0, 3), (1, 4), (2, 3)] {
        let life = life(0, generation);
        let hung = Happening::Seen { life, seen: sample(0, position, now) };
        now += DEADLINE;
        supervisor.handle(hung, now);
        now += DUMP;
        supervisor.handle(hung, now);
        let actions = deeds(end(&mut supervisor, life, KILLED, now));
        if generation < 2 {
            assert_eq!(actions, [fork(0, generation + 1)]);
            is_ready(&mut supervisor, super::life(0, generation + 1));
        } else {
            let given_up = Action::GiveUp { task: 0, at: Some(3), why: Reason::Hangs };
            assert_eq!(actions, [given_up, fork(0, 3)]);
        }
    }
}

#[test]
fn a_worker_that_goes_on_after_the_dump_is_left_alone() {
    let late = NOW + DEADLINE;
    let then = late + DUMP;
    let moved = late + Duration::from_millis(1);
    // Another sample, the same once more, or waiting for memory.
    let blocked = Seen { work: Work::Blocked, ..sample(0, 3, NOW) };
    for seen in [sample(0, 4, moved), sample(0, 3, moved), blocked] {
        let mut supervisor = busy(with_deadline());
        look(&mut supervisor, FIRST, sample(0, 3, NOW), late);
        assert_eq!(look(&mut supervisor, FIRST, seen, then), []);
        let next = if seen.work == Work::Blocked { then } else { moved };
        assert_eq!(supervisor.next_deadline(), Some(next + DEADLINE));
        let slow = sample(0, 5, next);
        let actions = look(&mut supervisor, FIRST, slow, next + DEADLINE);
        assert_eq!(actions, [Action::Dump { life: FIRST }]);
    }
}

#[test]
fn a_sample_that_was_begun_again_after_the_dump_gets_a_dump_of_its_own() {
    let deadline = DUMP / 2;
    let mut supervisor = busy(Settings { deadline: Some(deadline), ..settings(1) });
    let late = NOW + deadline;
    let dump = [Action::Dump { life: FIRST }];
    assert_eq!(look(&mut supervisor, FIRST, sample(0, 3, NOW), late), dump);
    let again = sample(0, 3, late + Duration::from_millis(1));
    assert_eq!(look(&mut supervisor, FIRST, again, late + DUMP), dump);
}

#[test]
fn a_look_that_nobody_asked_for_cuts_no_dump_short() {
    let mut supervisor = busy(with_deadline());
    let late = NOW + DEADLINE;
    let hung = sample(0, 3, NOW);
    look(&mut supervisor, FIRST, hung, late);
    let early = Happening::Seen { life: FIRST, seen: hung };
    assert_eq!(supervisor.handle(early, late + DUMP / 2), []);
    assert_eq!(supervisor.next_deadline(), Some(late + DUMP));
}

#[test]
fn a_hang_is_held_against_the_task_that_was_seen_and_not_against_the_first() {
    let mut supervisor = busy(with_deadline());
    submit(&mut supervisor, 1, Some(0));
    let late = NOW + DEADLINE;
    look(&mut supervisor, FIRST, sample(1, 3, NOW), late);
    look(&mut supervisor, FIRST, sample(1, 3, NOW), late + DUMP);
    let actions = deeds(end(&mut supervisor, FIRST, KILLED, late + DUMP));
    let given_up = Action::GiveUp { task: 1, at: Some(3), why: Reason::Hangs };
    assert_eq!(actions, [given_up, fork(0, 1)]);
    assert_eq!(is_ready(&mut supervisor, life(0, 1)), [send(0, 1, 0)]);
}

#[test]
fn a_worker_that_waits_for_memory_or_starts_late_is_never_late() {
    for work in [Work::Blocked, Work::Starting] {
        let mut supervisor = busy(Settings { stall: Some(STALL), ..with_deadline() });
        let mut now = NOW;
        for _ in 0..5 {
            now = supervisor.next_deadline().unwrap();
            let seen = Seen { work, ..sample(0, 3, NOW) };
            assert_eq!(look(&mut supervisor, FIRST, seen, now), []);
        }
        assert_eq!(now, NOW + STALL * 5);
    }
}

#[test]
fn an_answer_that_crosses_the_kill_counts_and_no_hang_does() {
    let mut supervisor = busy(with_deadline());
    submit(&mut supervisor, 1, Some(0));
    let late = NOW + DEADLINE;
    look(&mut supervisor, FIRST, sample(0, 3, NOW), late);
    look(&mut supervisor, FIRST, sample(0, 3, NOW), late + DUMP);
    assert_eq!(answer(&mut supervisor, FIRST, 0), [Action::Accept { task: 0 }]);
    let actions = deeds(end(&mut supervisor, FIRST, KILLED, late + DUMP));
    assert_eq!(actions, [fork(0, 1)]);
    assert_eq!(is_ready(&mut supervisor, life(0, 1)), [send(0, 1, 1)]);
}

#[test]
fn a_look_that_did_not_happen_is_due_again_soon() {
    let mut supervisor = busy(with_deadline());
    let late = NOW + DEADLINE;
    supervisor.handle(Happening::TimePassed, late);
    assert_eq!(supervisor.next_deadline(), Some(late + DUMP));
}

#[test]
fn a_worker_that_has_not_written_its_stack_is_given_more_time() {
    let mut supervisor = busy(with_deadline());
    let late = NOW + DEADLINE;
    let dumping = Seen { is_dumping: true, ..sample(0, 3, NOW) };
    assert_eq!(look(&mut supervisor, FIRST, dumping, late), [Action::Dump { life: FIRST }]);
    assert_eq!(look(&mut supervisor, FIRST, dumping, late + DUMP), []);
    assert_eq!(look(&mut supervisor, FIRST, dumping, late + DUMP * 3), []);
    let written = sample(0, 3, NOW);
    assert_eq!(
        look(&mut supervisor, FIRST, written, late + DUMP * 4),
        [Action::Kill { life: FIRST }]
    );
}

#[test]
fn one_that_never_writes_it_is_killed_all_the_same() {
    let mut supervisor = busy(with_deadline());
    let late = NOW + DEADLINE;
    let dumping = Seen { is_dumping: true, ..sample(0, 3, NOW) };
    assert_eq!(look(&mut supervisor, FIRST, dumping, late), [Action::Dump { life: FIRST }]);
    let end = late + DUMP * DUMP_EXTENSIONS;
    assert_eq!(look(&mut supervisor, FIRST, dumping, end), [Action::Kill { life: FIRST }]);
}

#[test]
fn a_stall_is_dumped_and_told_once_and_never_kills() {
    let mut supervisor = busy(with_stall());
    let seen = sample(0, 3, NOW);
    let late = NOW + STALL;
    assert_eq!(look(&mut supervisor, FIRST, seen, late), [Action::Dump { life: FIRST }]);
    let actions = look(&mut supervisor, FIRST, seen, late + DUMP);
    assert_eq!(actions, [Action::Stalled { life: FIRST, seen }]);
    for _ in 0..5 {
        let now = supervisor.next_deadline().unwrap();
        assert_eq!(look(&mut supervisor, FIRST, seen, now), []);
    }
    let now = supervisor.next_deadline().unwrap();
    let seen = sample(0, 4, NOW);
    assert_eq!(look(&mut supervisor, FIRST, seen, now), [Action::Dump { life: FIRST }]);
    let actions = look(&mut supervisor, FIRST, seen, now + DUMP);
    assert_eq!(actions, [Action::Stalled { life: FIRST, seen }]);
}

#[test]
fn a_worker_that_is_stopped_while_it_waits_for_something_has_a_deadline() {
    let blocked = Seen { work: Work::Blocked, ..sample(0, 0, NOW) };
    for stopped in [false, true] {
        let mut supervisor = busy(with_deadline());
        let seen = Seen { stopped, ..blocked };
        let late = NOW + DEADLINE;
        let dump = if stopped { vec![Action::Dump { life: FIRST }] } else { vec![] };
        assert_eq!(look(&mut supervisor, FIRST, seen, late), dump);
        if stopped {
            let killed = look(&mut supervisor, FIRST, seen, late + DUMP);
            assert_eq!(killed, [Action::Kill { life: FIRST }]);
        }
    }
}

#[test]
fn a_worker_that_starts_for_too_long_is_killed_and_a_stopped_one_at_its_deadline() {
    for (stopped, limit) in [(false, START), (true, DEADLINE)] {
        let mut supervisor = booting(Settings { deadline: Some(DEADLINE), ..settings(1) });
        let seen = Seen { stopped, ..starting(NOW) };
        let early = NOW + limit - Duration::from_millis(1);
        assert_eq!(supervisor.handle(Happening::Seen { life: FIRST, seen }, early), []);
        let late = NOW + limit;
        assert_eq!(look(&mut supervisor, FIRST, seen, late), [Action::Dump { life: FIRST }]);
        let killed = look(&mut supervisor, FIRST, seen, late + DUMP);
        assert_eq!(killed, [Action::Kill { life: FIRST }]);
        let ended = Happening::Ended { life: FIRST, ending: KILLED, at: None };
        let actions = supervisor.handle(ended, late + DUMP);
        assert_eq!(actions[1], Action::Fork { life: life(0, 1) });
    }
}

#[test]
fn a_worker_that_starts_stalls_and_may_take_longer_than_a_sample() {
    let mut supervisor = booting(Settings { stall: Some(STALL), ..with_deadline() });
    let seen = starting(NOW);
    let late = NOW + STALL;
    assert_eq!(look(&mut supervisor, FIRST, seen, late), [Action::Dump { life: FIRST }]);
    let actions = look(&mut supervisor, FIRST, seen, late + DUMP);
    assert_eq!(actions, [Action::Stalled { life: FIRST, seen }]);
    let later = Happening::Seen { life: FIRST, seen };
    assert_eq!(supervisor.handle(later, START), []);
    let mut supervisor = booting(Settings { deadline: None, ..with_deadline() });
    assert_eq!(supervisor.next_deadline(), None);
    assert_eq!(supervisor.handle(later, START * 10), []);
}

#[test]
fn a_sample_stalls_before_it_passes_the_deadline_and_not_after() {
    let mut supervisor = busy(Settings { stall: Some(STALL), ..with_deadline() });
    let seen = sample(0, 3, NOW);
    look(&mut supervisor, FIRST, seen, NOW + STALL);
    let actions = look(&mut supervisor, FIRST, seen, NOW + STALL + DUMP);
    assert_eq!(actions, [Action::Stalled { life: FIRST, seen }]);
    let late = NOW + DEADLINE;
    assert_eq!(supervisor.next_deadline(), Some(late));
    assert_eq!(look(&mut supervisor, FIRST, seen, late), [Action::Dump { life: FIRST }]);
    let actions = look(&mut supervisor, FIRST, seen, late + DUMP);
    assert_eq!(actions, [Action::Kill { life: FIRST }]);
    let mut supervisor = busy(Settings { stall: Some(DEADLINE), ..with_deadline() });
    look(&mut supervisor, FIRST, seen, late);
    let actions = look(&mut supervisor, FIRST, seen, late + DUMP);
    assert_eq!(actions, [Action::Kill { life: FIRST }]);
}

#[test]
fn a_retired_worker_has_a_deadline_too() {
    let mut supervisor = busy(with_deadline());
    supervisor.handle(Happening::Retire { post: 0 }, NOW);
    let late = NOW + DEADLINE;
    look(&mut supervisor, FIRST, sample(0, 3, NOW), late);
    let actions = look(&mut supervisor, FIRST, sample(0, 3, NOW), late + DUMP);
    assert_eq!(actions, [Action::Kill { life: FIRST }]);
}

fn asleep(task: Task, position: u64, since: Duration) -> Seen {
    Seen { asleep: true, ..sample(task, position, since) }
}

fn may_be_fresh() -> Settings {
    Settings { may_be_fresh: true, max_deaths: 0, deadline: Some(DEADLINE), ..settings(2) }
}

/// A run with two workers, of which the first is found asleep at its first sample.
fn reborn(settings: Settings) -> Healthy {
    let mut supervisor = ready(settings);
    submit(&mut supervisor, 0, Some(0));
    submit(&mut supervisor, 1, Some(1));
    let seen = asleep(0, 0, NOW);
    look(&mut supervisor, FIRST, seen, NOW + DEADLINE);
    let actions = look(&mut supervisor, FIRST, seen, NOW + DEADLINE + DUMP);
    assert_eq!(actions, [Action::Reborn { life: FIRST, seen }, Action::EndZygote]);
    supervisor
}

#[test]
fn a_worker_asleep_before_its_first_answer_makes_all_start_again_fresh() {
    let mut supervisor = reborn(may_be_fresh());
    let now = NOW + DEADLINE + DUMP;
    assert_eq!(end(&mut supervisor, life(1, 0), KILLED, now), []);
    let actions = supervisor.handle(Happening::ZygoteEnded, now);
    assert_eq!(actions, [Action::BearZygote { fresh: true }]);
    assert_eq!(supervisor.deaths(), []);
    assert_eq!(supervisor.handle(Happening::ZygoteReady, now), [fork(0, 1), fork(1, 1)]);
    assert_eq!(is_ready(&mut supervisor, life(0, 1)), [send(0, 1, 0)]);
    assert_eq!(is_ready(&mut supervisor, life(1, 1)), [send(1, 1, 1)]);
}

#[test]
fn a_trial_outlives_a_rebirth_whoever_ends_first() {
    for ends_first in [true, false] {
        let settings = Settings { suspect_after: Some(1), max_deaths: 1, ..may_be_fresh() };
        let mut supervisor = ready(settings);
        submit(&mut supervisor, 0, Some(0));
        submit(&mut supervisor, 1, None);
        die_at(&mut supervisor, life(1, 0), Some(7));
        is_ready(&mut supervisor, life(1, 1));
        let late = NOW + DEADLINE;
        look(&mut supervisor, FIRST, asleep(0, 0, NOW), late);
        look(&mut supervisor, FIRST, asleep(0, 0, NOW), late + DUMP);
        if ends_first {
            assert_eq!(end(&mut supervisor, life(1, 1), KILLED, late + DUMP), []);
        }
        let actions = supervisor.handle(Happening::ZygoteEnded, late + DUMP);
        assert_eq!(actions, [Action::BearZygote { fresh: true }]);
        supervisor.handle(Happening::ZygoteReady, late + DUMP);
        let actions = is_ready(&mut supervisor, life(1, 2));
        assert_eq!(actions, [Action::Send { life: life(1, 2), task: 1, trial: Some(7) }]);
    }
}

#[test]
fn a_zygote_that_does_not_end_for_the_rebirth_is_not_waited_for() {
    let mut supervisor = reborn(may_be_fresh());
    let until = NOW + DEADLINE + DUMP + GRACE;
    supervisor.handle(Happening::TimePassed, until - Duration::from_nanos(1));
    assert_eq!(supervisor.next_deadline(), Some(until));
    let actions = supervisor.handle(Happening::TimePassed, until);
    assert_eq!(actions, [Action::BearZygote { fresh: true }]);
    assert_eq!(supervisor.lives(0).count() + supervisor.lives(1).count(), 0);
}

#[test]
fn a_rebirth_happens_once_and_all_zygotes_after_it_are_fresh() {
    let mut supervisor = reborn(Settings { max_deaths: 1, ..may_be_fresh() });
    supervisor.handle(Happening::ZygoteEnded, NOW);
    supervisor.handle(Happening::ZygoteReady, NOW);
    is_ready(&mut supervisor, life(0, 1));
    let late = Duration::from_secs(100);
    let seen = Happening::Seen { life: life(0, 1), seen: asleep(0, 0, NOW) };
    supervisor.handle(seen, late);
    assert_eq!(supervisor.handle(seen, late + DUMP), [Action::Kill { life: life(0, 1) }]);
    let actions = deeds(supervisor.handle(Happening::ZygoteEnded, late + DUMP));
    let fresh = Action::BearZygote { fresh: true };
    let given_up = Action::GiveUp { task: 0, at: Some(0), why: Reason::Hangs };
    assert_eq!(actions, [given_up, fresh]);
}

#[test]
fn who_has_answered_or_is_awake_or_is_fresh_already_is_killed_instead() {
    let late = NOW + DEADLINE;
    let kill = [Action::Kill { life: FIRST }];
    let mut worked = ready(may_be_fresh());
    submit(&mut worked, 1, Some(0));
    answer(&mut worked, FIRST, 1);
    submit(&mut worked, 2, Some(0));
    look(&mut worked, FIRST, asleep(2, 0, NOW), late);
    assert_eq!(look(&mut worked, FIRST, asleep(2, 0, NOW), late + DUMP), kill);
    let mut awake = busy(may_be_fresh());
    look(&mut awake, FIRST, sample(0, 0, NOW), late);
    assert_eq!(look(&mut awake, FIRST, sample(0, 0, NOW), late + DUMP), kill);
    let mut fresh = busy(Settings { may_be_fresh: false, ..may_be_fresh() });
    look(&mut fresh, FIRST, asleep(0, 0, NOW), late);
    assert_eq!(look(&mut fresh, FIRST, asleep(0, 0, NOW), late + DUMP), kill);
}

#[test]
fn a_worker_asleep_while_it_starts_makes_all_start_again_fresh() {
    let mut supervisor = booting(Settings { may_be_fresh: true, ..with_stall() });
    let seen = Seen { asleep: true, ..starting(NOW) };
    look(&mut supervisor, FIRST, seen, NOW + STALL);
    let actions = look(&mut supervisor, FIRST, seen, NOW + STALL + DUMP);
    assert_eq!(actions, [Action::Reborn { life: FIRST, seen }, Action::EndZygote]);
    let refused = Happening::Refused { life: FIRST, passing: false };
    assert_eq!(supervisor.handle(refused, NOW), []);
}

#[test]
fn closing_ends_during_a_rebirth() {
    let mut supervisor = reborn(may_be_fresh());
    supervisor.handle(Happening::Close, NOW);
    assert_eq!(supervisor.handle(Happening::ZygoteEnded, NOW), [Action::Closed]);
}
