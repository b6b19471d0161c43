//! Workers that are renewed without a pause.

use super::*;

const OLD: Life = Life { post: 0, generation: 0 };
const NEW: Life = Life { post: 0, generation: 1 };

fn renew(supervisor: &mut Healthy, life: Life, now: Duration) -> Vec<Action> {
    supervisor.handle(Happening::Renew { life }, now)
}

/// A run whose one worker has tasks 0 and 1 at hand and a successor that starts.
fn renewing(settings: Settings) -> Healthy {
    let mut supervisor = ready(settings);
    submit(&mut supervisor, 0, Some(0));
    submit(&mut supervisor, 1, Some(0));
    assert_eq!(renew(&mut supervisor, OLD, NOW), [fork(0, 1)]);
    supervisor
}

#[test]
fn a_worker_goes_on_until_its_successor_is_ready_and_then_ends_after_what_it_has_at_hand() {
    let mut supervisor = renewing(settings(1));
    assert_eq!(supervisor.lives(0).collect::<Vec<_>>(), [OLD, NEW]);
    assert_eq!(submit(&mut supervisor, 2, Some(0)), [send(0, 0, 2)]);
    assert_eq!(supervisor.life(0), Some(OLD));
    assert_eq!(is_ready(&mut supervisor, NEW), [Action::Stop { life: OLD }]);
    assert_eq!(supervisor.life(0), Some(NEW));
    for task in 0..2 {
        assert_eq!(answer(&mut supervisor, OLD, task), [Action::Accept { task }]);
    }
    assert_eq!(supervisor.next_deadline(), None);
    // Pinned tasks wait for their order, others do not.
    assert_eq!(submit(&mut supervisor, 3, Some(0)), []);
    assert_eq!(submit(&mut supervisor, 4, None), [send(0, 1, 4)]);
    let actions = answer(&mut supervisor, OLD, 2);
    assert_eq!(actions, [Action::Accept { task: 2 }, send(0, 1, 3)]);
    assert_eq!(supervisor.next_deadline(), Some(NOW + GRACE));
    let actions = end(&mut supervisor, OLD, Ending::Exited(0), NOW);
    assert_eq!(actions, [Action::Retired { life: OLD }]);
    assert_eq!(supervisor.lives(0).collect::<Vec<_>>(), [NEW]);
}

#[test]
fn a_worker_that_was_renewed_and_stays_is_killed_and_has_not_died() {
    let mut supervisor = ready(Settings { max_deaths: 0, ..settings(1) });
    renew(&mut supervisor, OLD, NOW);
    is_ready(&mut supervisor, NEW);
    let actions = supervisor.handle(Happening::TimePassed, NOW + GRACE);
    assert_eq!(actions, [Action::Kill { life: OLD }]);
    let actions = end(&mut supervisor, OLD, KILLED, NOW + GRACE);
    assert_eq!(actions, [Action::Retired { life: OLD }]);
}

#[test]
fn a_worker_that_was_renewed_and_dies_with_tasks_has_died_and_its_successor_does_them() {
    let mut supervisor = renewing(settings(1));
    is_ready(&mut supervisor, NEW);
    let actions = deeds(end(&mut supervisor, OLD, KILLED, NOW));
    assert_eq!(actions, [send(0, 1, 0), send(0, 1, 1)]);
    assert_eq!(supervisor.deaths().len(), 1);
}

#[test]
fn a_worker_that_dies_before_its_successor_is_ready_leaves_it_the_post() {
    let mut supervisor = renewing(settings(1));
    assert_eq!(deeds(end(&mut supervisor, OLD, KILLED, NOW)), []);
    assert_eq!(supervisor.life(0), Some(NEW));
    assert_eq!(is_ready(&mut supervisor, NEW), [send(0, 1, 0), send(0, 1, 1)]);
}

#[test]
fn a_successor_that_dies_starting_is_a_death_and_is_tried_again_not_before_a_second() {
    let mut supervisor = renewing(Settings { replace: false, ..settings(1) });
    assert_eq!(deeds(end(&mut supervisor, NEW, Ending::Exited(1), NOW)), []);
    assert!(!supervisor.deaths()[0].replaced);
    let second = NOW + Duration::from_secs(1);
    assert_eq!(renew(&mut supervisor, OLD, second - Duration::from_nanos(1)), []);
    assert_eq!(renew(&mut supervisor, OLD, second), [fork(0, 2)]);
    end(&mut supervisor, life(0, 2), Ending::Exited(1), second);
    renew(&mut supervisor, OLD, second * 2);
    let actions = deeds(end(&mut supervisor, life(0, 3), Ending::Exited(1), second * 2));
    assert_eq!(actions[0], Action::Fail(Failure::DiesStarting { life: life(0, 3) }));
}

#[test]
fn a_successor_that_is_refused_is_no_reason_to_end_the_run() {
    for passing in [true, false] {
        let mut supervisor = renewing(settings(1));
        assert_eq!(supervisor.handle(Happening::Refused { life: NEW, passing }, NOW), []);
        assert_eq!(supervisor.next_deadline(), None);
        assert_eq!(renew(&mut supervisor, OLD, NOW), []);
        let second = NOW + Duration::from_secs(1);
        assert_eq!(renew(&mut supervisor, OLD, second), [fork(0, 2)]);
    }
}

#[test]
fn a_successor_that_cannot_start_is_killed_and_the_old_one_goes_on() {
    let mut supervisor = renewing(settings(1));
    let actions = supervisor.handle(Happening::StartFailed { life: NEW }, NOW);
    assert_eq!(actions, [Action::Kill { life: NEW }]);
    assert_eq!(supervisor.handle(Happening::StartFailed { life: NEW }, NOW), []);
    assert_eq!(is_ready(&mut supervisor, NEW), []);
    assert_eq!(deeds(end(&mut supervisor, NEW, Ending::Exited(1), NOW)), []);
    assert_eq!(supervisor.deaths()[0].stage, Stage::Booting);
    assert_eq!(submit(&mut supervisor, 2, Some(0)), [send(0, 0, 2)]);
}

#[test]
fn who_cannot_be_renewed_is_not() {
    let mut supervisor = booting(settings(1));
    assert_eq!(renew(&mut supervisor, OLD, NOW), []);
    let mut supervisor = renewing(settings(1));
    assert_eq!(renew(&mut supervisor, OLD, NOW), []);
    assert_eq!(renew(&mut supervisor, NEW, NOW), []);
    is_ready(&mut supervisor, NEW);
    // There are two until the old one has ended.
    assert_eq!(renew(&mut supervisor, OLD, NOW), []);
    assert_eq!(renew(&mut supervisor, NEW, NOW), []);
    let mut supervisor = ready(settings(1));
    supervisor.handle(Happening::Retire { post: 0 }, NOW);
    assert_eq!(renew(&mut supervisor, OLD, NOW), []);
    let mut supervisor = ready(Settings { suspect_after: Some(1), ..settings(1) });
    submit(&mut supervisor, 0, Some(0));
    die_at(&mut supervisor, OLD, Some(0));
    is_ready(&mut supervisor, NEW);
    assert_eq!(renew(&mut supervisor, NEW, NOW), []);
}

#[test]
fn a_task_of_the_old_one_is_tried_by_a_successor_that_has_done_nothing() {
    let mut supervisor = renewing(Settings { suspect_after: Some(1), ..settings(1) });
    is_ready(&mut supervisor, NEW);
    let actions = deeds(die_at(&mut supervisor, OLD, Some(2)));
    assert_eq!(actions, [Action::Send { life: NEW, task: 0, trial: Some(2) }]);
}

#[test]
fn a_successor_that_has_worked_makes_room_for_one_that_can_try() {
    let mut supervisor = renewing(Settings { suspect_after: Some(1), ..settings(1) });
    is_ready(&mut supervisor, NEW);
    assert_eq!(submit(&mut supervisor, 2, None), [send(0, 1, 2)]);
    let actions = deeds(die_at(&mut supervisor, OLD, Some(2)));
    assert_eq!(actions, [Action::Stop { life: NEW }]);
    assert_eq!(submit(&mut supervisor, 3, Some(0)), []);
    answer(&mut supervisor, NEW, 2);
    assert_eq!(end(&mut supervisor, NEW, Ending::Exited(0), NOW), [fork(0, 2)]);
    let actions = is_ready(&mut supervisor, life(0, 2));
    assert_eq!(actions, [Action::Send { life: life(0, 2), task: 0, trial: Some(2) }]);
}

#[test]
fn closing_ends_both_workers_of_a_post() {
    let mut supervisor = renewing(settings(1));
    let actions = supervisor.handle(Happening::Close, NOW);
    assert_eq!(actions, [Action::Stop { life: OLD }, Action::Kill { life: NEW }]);
    assert_eq!(end(&mut supervisor, NEW, KILLED, NOW), []);
    assert_eq!(end(&mut supervisor, OLD, Ending::Exited(0), NOW), [Action::Closed]);
}

#[test]
fn a_zygote_takes_both_workers_of_a_post_along() {
    let mut supervisor = renewing(settings(1));
    is_ready(&mut supervisor, NEW);
    submit(&mut supervisor, 2, Some(0));
    submit(&mut supervisor, 3, None);
    let actions = supervisor.handle(Happening::ZygoteEnded, NOW);
    assert_eq!(deeds(actions), [Action::BearZygote { fresh: false }]);
    assert_eq!(supervisor.deaths().len(), 2);
    supervisor.handle(Happening::ZygoteReady, NOW);
    let actions = is_ready(&mut supervisor, life(0, 2));
    assert_eq!(actions, [send(0, 2, 0), send(0, 2, 1), send(0, 2, 2)]);
}

#[test]
fn without_replacement_the_holder_of_a_post_is_named_and_not_its_successor() {
    let mut supervisor = ready(Settings { replace: false, ..settings(1) });
    renew(&mut supervisor, OLD, NOW);
    supervisor.handle(Happening::ZygoteEnded, NOW);
    let actions = submit(&mut supervisor, 0, Some(0));
    assert_eq!(actions, [Action::Fail(Failure::Death { life: OLD })]);
}

#[test]
fn a_renewed_worker_of_a_retired_post_and_its_successor_both_stop() {
    let mut supervisor = renewing(settings(1));
    let retire = Happening::Retire { post: 0 };
    assert_eq!(supervisor.handle(retire, NOW), [Action::Stop { life: OLD }]);
    assert_eq!(is_ready(&mut supervisor, NEW), [Action::Stop { life: NEW }]);
}
