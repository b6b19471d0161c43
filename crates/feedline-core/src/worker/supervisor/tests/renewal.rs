//! Workers that are renewed without a pause.

use super::*;

const OLD: Incarnation = Incarnation { worker_id: 0, generation: 0 };
const NEW: Incarnation = Incarnation { worker_id: 0, generation: 1 };

fn renew(
    supervisor: &mut Healthy,
    incarnation: Incarnation,
    now: Duration,
) -> Vec<SupervisorAction> {
    supervisor.handle(WorkerEvent::Renew { incarnation }, now)
}

/// A run whose one worker has tasks 0 and 1 and a successor that is starting.
fn renewing(settings: SupervisorSettings) -> Healthy {
    let mut supervisor = ready(settings);
    submit(&mut supervisor, 0, Some(0));
    submit(&mut supervisor, 1, Some(0));
    assert_eq!(renew(&mut supervisor, OLD, NOW), [fork(0, 1)]);
    supervisor
}

#[test]
fn a_worker_works_until_its_successor_is_ready_and_then_ends_after_its_tasks() {
    let mut supervisor = renewing(settings(1));
    assert_eq!(supervisor.incarnations(0).collect::<Vec<_>>(), [OLD, NEW]);
    assert_eq!(submit(&mut supervisor, 2, Some(0)), [send(0, 0, 2)]);
    assert_eq!(supervisor.incarnation(0), Some(OLD));
    assert_eq!(is_ready(&mut supervisor, NEW), [SupervisorAction::Stop { incarnation: OLD }]);
    assert_eq!(supervisor.incarnation(0), Some(NEW));
    for task in 0..2 {
        assert_eq!(result(&mut supervisor, OLD, task), [SupervisorAction::Accept { task }]);
    }
    assert_eq!(supervisor.next_deadline(), None);
    // Pinned tasks wait for their predecessors, others do not.
    assert_eq!(submit(&mut supervisor, 3, Some(0)), []);
    assert_eq!(submit(&mut supervisor, 4, None), [send(0, 1, 4)]);
    let actions = result(&mut supervisor, OLD, 2);
    assert_eq!(actions, [SupervisorAction::Accept { task: 2 }, send(0, 1, 3)]);
    assert_eq!(supervisor.next_deadline(), Some(NOW + GRACE));
    let actions = end(&mut supervisor, OLD, ExitKind::Exited(0), NOW);
    assert_eq!(actions, [SupervisorAction::Renewed { incarnation: OLD }]);
    assert_eq!(supervisor.incarnations(0).collect::<Vec<_>>(), [NEW]);
}

#[test]
fn a_renewed_worker_that_does_not_exit_is_killed_and_is_no_death() {
    let mut supervisor = ready(SupervisorSettings { max_deaths: 0, ..settings(1) });
    renew(&mut supervisor, OLD, NOW);
    is_ready(&mut supervisor, NEW);
    let actions = supervisor.handle(WorkerEvent::TimePassed, NOW + GRACE);
    assert_eq!(actions, [SupervisorAction::Kill { incarnation: OLD }]);
    let actions = end(&mut supervisor, OLD, KILLED, NOW + GRACE);
    assert_eq!(actions, [SupervisorAction::Renewed { incarnation: OLD }]);
}

#[test]
fn a_renewed_worker_that_dies_with_tasks_is_a_death_and_its_successor_gets_them() {
    let mut supervisor = renewing(settings(1));
    is_ready(&mut supervisor, NEW);
    let actions = without_deaths(end(&mut supervisor, OLD, KILLED, NOW));
    assert_eq!(actions, [send(0, 1, 0), send(0, 1, 1)]);
    assert_eq!(supervisor.deaths().len(), 1);
}

#[test]
fn the_successor_of_a_worker_that_dies_takes_its_place_before_it_is_ready() {
    let mut supervisor = renewing(settings(1));
    assert_eq!(without_deaths(end(&mut supervisor, OLD, KILLED, NOW)), []);
    assert_eq!(supervisor.incarnation(0), Some(NEW));
    assert_eq!(is_ready(&mut supervisor, NEW), [send(0, 1, 0), send(0, 1, 1)]);
}

#[test]
fn a_successor_that_dies_starting_is_a_death_and_is_retried_after_a_second() {
    let mut supervisor = renewing(SupervisorSettings { replace: false, ..settings(1) });
    assert_eq!(without_deaths(end(&mut supervisor, NEW, ExitKind::Exited(1), NOW)), []);
    assert!(!supervisor.deaths()[0].replaced);
    let second = NOW + Duration::from_secs(1);
    assert_eq!(renew(&mut supervisor, OLD, second - Duration::from_nanos(1)), []);
    assert_eq!(renew(&mut supervisor, OLD, second), [fork(0, 2)]);
    end(&mut supervisor, incarnation(0, 2), ExitKind::Exited(1), second);
    renew(&mut supervisor, OLD, second * 2);
    let actions =
        without_deaths(end(&mut supervisor, incarnation(0, 3), ExitKind::Exited(1), second * 2));
    assert_eq!(
        actions[0],
        SupervisorAction::Fail(RunFailure::DiesStarting { incarnation: incarnation(0, 3) })
    );
}

#[test]
fn a_successor_that_is_refused_for_good_does_not_end_the_run() {
    let mut supervisor = renewing(settings(1));
    let refused = WorkerEvent::Refused { incarnation: NEW, transient: false };
    assert_eq!(supervisor.handle(refused, NOW), []);
    assert_eq!(supervisor.next_deadline(), None);
    assert_eq!(renew(&mut supervisor, OLD, NOW), []);
    let second = NOW + Duration::from_secs(1);
    assert_eq!(renew(&mut supervisor, OLD, second), [fork(0, 2)]);
}

#[test]
fn a_successor_that_cannot_start_is_killed_and_the_old_worker_continues() {
    let mut supervisor = renewing(settings(1));
    let actions = supervisor.handle(WorkerEvent::StartFailed { incarnation: NEW }, NOW);
    assert_eq!(actions, [SupervisorAction::Kill { incarnation: NEW }]);
    assert_eq!(supervisor.handle(WorkerEvent::StartFailed { incarnation: NEW }, NOW), []);
    assert_eq!(is_ready(&mut supervisor, NEW), []);
    assert_eq!(without_deaths(end(&mut supervisor, NEW, ExitKind::Exited(1), NOW)), []);
    assert_eq!(supervisor.deaths()[0].stage, WorkerStage::Booting);
    assert_eq!(submit(&mut supervisor, 2, Some(0)), [send(0, 0, 2)]);
}

#[test]
fn only_the_single_ready_process_of_a_worker_is_renewed() {
    let mut supervisor = booting(settings(1));
    assert_eq!(renew(&mut supervisor, OLD, NOW), []);
    let mut supervisor = renewing(settings(1));
    assert_eq!(renew(&mut supervisor, OLD, NOW), []);
    assert_eq!(renew(&mut supervisor, NEW, NOW), []);
    is_ready(&mut supervisor, NEW);
    // There are two processes until the old one has ended.
    assert_eq!(renew(&mut supervisor, OLD, NOW), []);
    assert_eq!(renew(&mut supervisor, NEW, NOW), []);
    let mut supervisor = ready(settings(1));
    supervisor.handle(WorkerEvent::Retire { worker_id: 0 }, NOW);
    assert_eq!(renew(&mut supervisor, OLD, NOW), []);
    let mut supervisor = ready(SupervisorSettings { suspect_after: Some(1), ..settings(1) });
    submit(&mut supervisor, 0, Some(0));
    die_at(&mut supervisor, OLD, Some(0));
    is_ready(&mut supervisor, NEW);
    assert_eq!(renew(&mut supervisor, NEW, NOW), []);
}

#[test]
fn a_fresh_successor_tries_a_task_of_its_predecessor() {
    let mut supervisor = renewing(SupervisorSettings { suspect_after: Some(1), ..settings(1) });
    is_ready(&mut supervisor, NEW);
    let actions = without_deaths(die_at(&mut supervisor, OLD, Some(2)));
    assert_eq!(actions, [SupervisorAction::Send { incarnation: NEW, task: 0, trial: Some(2) }]);
}

#[test]
fn a_successor_that_has_worked_is_replaced_for_a_trial() {
    let mut supervisor = renewing(SupervisorSettings { suspect_after: Some(1), ..settings(1) });
    is_ready(&mut supervisor, NEW);
    assert_eq!(submit(&mut supervisor, 2, None), [send(0, 1, 2)]);
    let actions = without_deaths(die_at(&mut supervisor, OLD, Some(2)));
    assert_eq!(actions, [SupervisorAction::Stop { incarnation: NEW }]);
    assert_eq!(submit(&mut supervisor, 3, Some(0)), []);
    result(&mut supervisor, NEW, 2);
    assert_eq!(end(&mut supervisor, NEW, ExitKind::Exited(0), NOW), [fork(0, 2)]);
    let actions = is_ready(&mut supervisor, incarnation(0, 2));
    assert_eq!(
        actions,
        [SupervisorAction::Send { incarnation: incarnation(0, 2), task: 0, trial: Some(2) }]
    );
}

#[test]
fn closing_ends_both_processes_of_a_worker() {
    let mut supervisor = renewing(settings(1));
    let actions = supervisor.handle(WorkerEvent::Close, NOW);
    assert_eq!(
        actions,
        [SupervisorAction::Stop { incarnation: OLD }, SupervisorAction::Kill { incarnation: NEW }]
    );
    assert_eq!(end(&mut supervisor, NEW, KILLED, NOW), []);
    assert_eq!(end(&mut supervisor, OLD, ExitKind::Exited(0), NOW), [SupervisorAction::Closed]);
}

#[test]
fn a_zygote_that_ends_loses_both_processes_of_a_worker() {
    let mut supervisor = renewing(settings(1));
    is_ready(&mut supervisor, NEW);
    submit(&mut supervisor, 2, Some(0));
    submit(&mut supervisor, 3, None);
    let actions = supervisor.handle(WorkerEvent::ZygoteEnded, NOW);
    assert_eq!(without_deaths(actions), [SupervisorAction::StartZygote { fresh: false }]);
    assert_eq!(supervisor.deaths().len(), 2);
    supervisor.handle(WorkerEvent::ZygoteReady, NOW);
    let actions = is_ready(&mut supervisor, incarnation(0, 2));
    assert_eq!(actions, [send(0, 2, 0), send(0, 2, 1), send(0, 2, 2)]);
}

#[test]
fn without_replacement_the_failure_names_the_current_process_not_its_successor() {
    let mut supervisor = ready(SupervisorSettings { replace: false, ..settings(1) });
    renew(&mut supervisor, OLD, NOW);
    supervisor.handle(WorkerEvent::ZygoteEnded, NOW);
    let actions = submit(&mut supervisor, 0, Some(0));
    assert_eq!(actions, [SupervisorAction::Fail(RunFailure::Death { incarnation: OLD })]);
}

#[test]
fn a_retired_worker_under_renewal_and_its_successor_both_stop() {
    let mut supervisor = renewing(settings(1));
    let retire = WorkerEvent::Retire { worker_id: 0 };
    assert_eq!(supervisor.handle(retire, NOW), [SupervisorAction::Stop { incarnation: OLD }]);
    assert_eq!(is_ready(&mut supervisor, NEW), [SupervisorAction::Stop { incarnation: NEW }]);
}
