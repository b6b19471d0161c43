//! Compares orders with lists that are computed step by step, and checks the properties of every order.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn shuffled(samples: u64, seed: Option<u64>, shard: Shard) -> Plan {
    let mut steps: Vec<_> = seed.into_iter().map(|seed| OrderStep::Shuffle { seed }).collect();
    steps.push(OrderStep::Shard(shard));
    Plan::new(&[samples], &steps, Excluded::default()).unwrap()
}

fn by_record(rank: u64, world: u64, remainder: Remainder) -> Shard {
    Shard::new(rank, world, remainder, By::Record).unwrap()
}

fn remainders() -> impl Strategy<Value = Remainder> {
    prop_oneof![Just(Remainder::Pad), Just(Remainder::Drop), Just(Remainder::Uneven)]
}

fn ranks() -> impl Strategy<Value = (u64, u64, Remainder)> {
    (1_u64..9, remainders())
        .prop_flat_map(|(world, remainder)| (0..world, Just(world), Just(remainder)))
}

fn epoch(plan: &Plan, epoch: u64) -> Vec<Ticket> {
    let order = plan.epoch(epoch);
    assert_eq!(order.at(plan.epoch_len()), None);
    (0..plan.epoch_len()).map(|place| order.at(place).unwrap()).collect()
}

fn indices(plan: &Plan, at: u64) -> Vec<u64> {
    epoch(plan, at).iter().map(|ticket| ticket.index).collect()
}

/// How often each sample occurs.
fn counts(samples: impl IntoIterator<Item = u64>) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    samples.into_iter().for_each(|sample| *counts.entry(sample).or_default() += 1);
    counts
}

proptest! {
    #[test]
    fn an_epoch_of_one_rank_is_every_sample_once(samples in 1_u64..500, seed: Option<u64>, at in 0_u64..5) {
        let mut found = indices(&shuffled(samples, seed, Shard::default()), at);
        found.sort_unstable();
        prop_assert_eq!(found, (0..samples).collect::<Vec<_>>());
    }

    #[test]
    fn ranks_share_an_epoch(samples in 1_u64..300, seed: Option<u64>, (_, world, remainder) in ranks()) {
        let mut seen = vec![0_u64; samples as usize];
        let mut lengths = Vec::new();
        let mut positions = Vec::new();
        for rank in 0..world {
            let plan = shuffled(samples, seed, by_record(rank, world, remainder));
            lengths.push(plan.epoch_len());
            for ticket in epoch(&plan, 1) {
                seen[ticket.index as usize] += 1;
                positions.push(ticket.position);
            }
        }
        let total: u64 = seen.iter().sum();
        positions.sort_unstable();
        positions.dedup();
        prop_assert_eq!(positions.len() as u64, total, "positions are unique over ranks");
        match remainder {
            Remainder::Pad => {
                prop_assert!(lengths.iter().all(|length| *length == samples.div_ceil(world)));
                let (fewest, most) = (seen.iter().min().unwrap(), seen.iter().max().unwrap());
                prop_assert!(*fewest >= 1 && most - fewest <= 1);
            }
            Remainder::Drop => {
                prop_assert!(lengths.iter().all(|length| *length == samples / world));
                prop_assert!(seen.iter().all(|times| *times <= 1));
            }
            Remainder::Uneven => prop_assert!(seen.iter().all(|times| *times == 1)),
        }
    }

    #[test]
    fn every_number_has_a_ticket_and_positions_rise_but_for_padding(
        samples in 1_u64..1 << 61, seed: Option<u64>, (rank, world, remainder) in ranks(), number: u64,
    ) {
        let plan = shuffled(samples, seed, by_record(rank, world, remainder));
        if let (Some(ticket), Some(next)) = (plan.at(number), plan.at(number.saturating_add(1))) {
            prop_assert!(ticket.index < samples);
            prop_assert!(next.position >= ticket.position || ticket.position >= PADDED);
        } else {
            prop_assert_eq!(plan.epoch_len(), 0);
        }
    }

    #[test]
    fn excluded_samples_are_as_if_they_did_not_exist(
        excluded in prop::collection::btree_set(0_u64..60, 0..20), seed: Option<u64>,
        (rank, world, remainder) in ranks(),
    ) {
        let kept: Vec<u64> = (0..60).filter(|index| !excluded.contains(index)).collect();
        let steps = [
            OrderStep::Shuffle { seed: seed.unwrap_or(0) },
            OrderStep::Shard(by_record(rank, world, remainder)),
        ];
        let steps = if seed.is_some() { &steps[..] } else { &steps[1..] };
        let short = Plan::new(&[kept.len() as u64], steps, Excluded::default()).unwrap();
        let plan = Plan::new(&[60], steps, excluded.into_iter().collect()).unwrap();
        prop_assert_eq!(plan.epoch_len(), short.epoch_len());
        for (ours, theirs) in epoch(&plan, 1).iter().zip(epoch(&short, 1)) {
            prop_assert_eq!(ours.index, kept[theirs.index as usize]);
            prop_assert_eq!(ours.position, theirs.position);
        }
    }
}

#[test]
fn epochs_differ_when_shuffled_and_repeat_when_not() {
    let plan = shuffled(100, Some(1), Shard::default());
    assert_ne!(indices(&plan, 0), indices(&plan, 1));
    let plain = shuffled(100, None, Shard::default());
    assert_eq!(indices(&plain, 0), indices(&plain, 1));
}

#[test]
fn a_trillion_samples_cost_the_memory_of_ten() {
    // The chain has only numbers, and a link for each step.
    assert!(size_of::<Plan>() <= 8 && size_of::<Chain>() <= 256);
    let plan = shuffled(1_000_000_000_000, Some(3), Shard::default());
    let tickets: Vec<_> = (0..1000).map(|number| plan.at(number).unwrap().index).collect();
    assert!(tickets.iter().any(|index| *index > 500_000_000_000));
    assert!(plan.at(3_000_000_000_000).is_some_and(|ticket| ticket.epoch == 3));
}

#[test]
fn a_rank_without_samples_has_no_tickets() {
    let plan = shuffled(2, None, by_record(3, 4, Remainder::Uneven));
    assert_eq!((plan.epoch_len(), plan.at(0)), (0, None));
    assert!(!plan.is_empty(), "others have some");
}

/// The order of a pass as a list, computed step by step; without parts and mixtures.
fn listed(shards: &[u64], steps: &[OrderStep], pass: u64) -> Vec<u64> {
    let Some((last, before)) = steps.split_last() else {
        return (0..shards.iter().sum()).collect();
    };
    let list = |pass| listed(shards, before, pass);
    match last {
        OrderStep::Shuffle { seed } => {
            let list = list(pass);
            let permutation = Permutation::new(list.len() as u64, *seed, pass);
            (0..list.len()).map(|place| list[permutation.at(place as u64) as usize]).collect()
        }
        OrderStep::Shard(shard) if !shard.is_by_shard() => {
            let list = list(pass);
            let place = |place| shard.order_of(shard.rank(), place) as usize % list.len();
            (0..shard.len(list.len() as u64)).map(|number| list[place(number)]).collect()
        }
        OrderStep::Skip(samples) => list(pass).into_iter().skip(*samples as usize).collect(),
        OrderStep::Take(samples) => list(pass).into_iter().take(*samples as usize).collect(),
        OrderStep::Repeat(times) => {
            (0..*times).flat_map(|turn| list(pass * times + turn)).collect()
        }
        OrderStep::ShuffleRuns { .. }
        | OrderStep::Shard(_)
        | OrderStep::Interleave { .. }
        | OrderStep::Concat(_)
        | OrderStep::Mix(_) => unreachable!("not drawn"),
    }
}

fn plain_steps() -> impl Strategy<Value = Vec<OrderStep>> {
    let step = prop_oneof![
        (0_u64..9).prop_map(|seed| OrderStep::Shuffle { seed }),
        (0_u64..30).prop_map(OrderStep::Skip),
        (1_u64..60).prop_map(OrderStep::Take),
        (1_u64..4).prop_map(OrderStep::Repeat),
    ];
    let shard = ranks()
        .prop_map(|(rank, world, remainder)| OrderStep::Shard(by_record(rank, world, remainder)));
    (prop::collection::vec(step, 0..5), prop::option::of((0_usize..5, shard))).prop_map(
        |(mut steps, shard)| {
            if let Some((at, shard)) = shard {
                steps.insert(at.min(steps.len()), shard);
            }
            steps
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_calls_mean_the_same_as_on_lists(
        shards in prop::collection::vec(0_u64..30, 1..4), steps in plain_steps(), at in 0_u64..4,
    ) {
        let plan = Plan::new(&shards, &steps, Excluded::default()).unwrap();
        let found = indices(&plan, at);
        prop_assert_eq!(&found, &listed(&shards, &steps, at));
        let length = plan.epoch_len();
        for (place, index) in found.iter().enumerate() {
            let ticket = plan.at(at * length + place as u64).unwrap();
            prop_assert_eq!((ticket.index, ticket.epoch), (*index, at));
        }
    }

    #[test]
    fn positions_rise_and_are_unique_over_ranks_whatever_the_steps(
        shards in prop::collection::vec(0_u64..30, 1..6), world in 1_u64..5, remainder in remainders(),
        by_shard: bool, skip in 0_u64..9, times in 1_u64..3,
    ) {
        let by = if by_shard { By::Shard } else { By::Record };
        let mut seen = BTreeSet::new();
        for rank in 0..world {
            let shard = Shard::new(rank, world, remainder, by).unwrap();
            let steps = [OrderStep::Shard(shard), OrderStep::Skip(skip), OrderStep::Repeat(times)];
            let Ok(plan) = Plan::new(&shards, &steps, Excluded::default()) else {
                prop_assert!(by_shard);
                continue;
            };
            let positions: Vec<_> =
                (0..3 * plan.epoch_len()).map(|number| plan.at(number).unwrap().position).collect();
            prop_assert!(positions.is_sorted_by(|one, other| one < other));
            prop_assert!(positions.into_iter().all(|position| seen.insert(position)));
        }
    }

    #[test]
    fn runs_are_shuffled_within_themselves(
        samples in 1_u64..300, buffer in 1_u64..400, seed: u64, at in 0_u64..3,
    ) {
        let plan = Plan::new(&[samples], &[OrderStep::ShuffleRuns { seed, buffer }], Excluded::default()).unwrap();
        let found = indices(&plan, at);
        for (run, places) in found.chunks(buffer as usize).enumerate() {
            let first = run as u64 * buffer;
            let mut sorted = places.to_vec();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (first..first + places.len() as u64).collect::<Vec<_>>());
        }
    }

    #[test]
    fn whole_shards_are_distributed_and_no_shard_twice(
        shards in prop::collection::vec(1_u64..20, 1..20), world in 1_u64..6, remainder in remainders(),
        cycle in prop::option::of(1_u64..9), seed: Option<u64>, at in 0_u64..3,
    ) {
        prop_assume!(shards.len() as u64 >= world);
        let starts: Vec<u64> =
            shards.iter().scan(0, |next, samples| { *next += samples; Some(*next - samples) }).collect();
        let shard_of = |index| starts.partition_point(|start| *start <= index) - 1;
        let mut lengths = BTreeSet::new();
        for rank in 0..world {
            let mut steps =
                vec![OrderStep::Shard(Shard::new(rank, world, remainder, By::Shard).unwrap())];
            steps.extend(cycle.map(|cycle| OrderStep::Interleave { cycle: Some(cycle), block: 2, seed }));
            let plan = Plan::new(&shards, &steps, Excluded::default()).unwrap();
            let found = indices(&plan, at);
            lengths.insert(found.len());
            prop_assert!(found.iter().all(|index| shard_of(*index) as u64 % world == rank));
            let own: u64 = shards.iter().skip(rank as usize).step_by(world as usize).sum();
            let times = counts(found.iter().copied());
            match remainder {
                Remainder::Pad => {
                    prop_assert_eq!(times.len() as u64, own, "all of its own");
                    let (first, again) = found.split_at(own as usize);
                    prop_assert!(again.iter().eq(first.iter().cycle().take(again.len())));
                }
                Remainder::Drop => prop_assert!(times.values().all(|times| *times == 1)),
                Remainder::Uneven => prop_assert_eq!(found.len() as u64, own),
            }
        }
        prop_assert!(remainder == Remainder::Uneven || lengths.len() == 1);
    }

    #[test]
    fn an_interleave_with_excluded_samples_is_that_of_shorter_shards(
        shards in prop::collection::vec(0_u64..12, 1..9), cycle in 1_u64..5, block in 1_u64..4, seed: Option<u64>,
        excluded in prop::collection::btree_set(0_u64..60, 0..20), at in 0_u64..3,
    ) {
        let all: u64 = shards.iter().sum();
        let excluded: BTreeSet<_> = excluded.into_iter().filter(|index| *index < all).collect();
        let mut first = 0;
        let shorter: Vec<u64> = shards.iter().map(|samples| {
            let range = first..first + samples;
            first += samples;
            samples - excluded.range(range).count() as u64
        }).collect();
        let kept: Vec<u64> = (0..all).filter(|index| !excluded.contains(index)).collect();
        let steps = [OrderStep::Interleave { cycle: Some(cycle), block, seed }];
        let plan = Plan::new(&shards, &steps, excluded.iter().copied().collect()).unwrap();
        let short = Plan::new(&shorter, &steps, Excluded::default()).unwrap();
        let expected: Vec<_> = indices(&short, at).iter().map(|place| kept[*place as usize]).collect();
        prop_assert_eq!(indices(&plan, at), expected);
    }
}

#[test]
fn a_shuffle_after_a_shard_stays_within_the_part() {
    let shard = OrderStep::Shard(by_record(1, 4, Remainder::Uneven));
    let shuffle = OrderStep::Shuffle { seed: 3 };
    let order =
        |steps: &[OrderStep]| indices(&Plan::new(&[40], steps, Excluded::default()).unwrap(), 0);
    let within = order(&[shard.clone(), shuffle.clone()]);
    assert!(within.iter().all(|index| index % 4 == 1));
    assert!(!order(&[shuffle, shard]).iter().all(|index| index % 4 == 1));
}

#[test]
fn a_repeated_shuffle_differs_in_each_pass_and_epoch() {
    let steps = [OrderStep::Shuffle { seed: 5 }, OrderStep::Repeat(3)];
    let plan = Plan::new(&[50], &steps, Excluded::default()).unwrap();
    let once = Plan::new(&[50], &steps[..1], Excluded::default()).unwrap();
    let passes: Vec<_> = (0..6).flat_map(|pass| indices(&once, pass)).collect();
    assert_eq!([indices(&plan, 0), indices(&plan, 1)].concat(), passes);
}

#[test]
fn shuffled_shards_differ_in_each_pass_and_are_whole() {
    let steps =
        [OrderStep::Interleave { cycle: Some(3), block: 2, seed: Some(1) }, OrderStep::Repeat(2)];
    let shards = [4, 0, 9, 3, 3, 7, 1, 8];
    let plan = Plan::new(&shards, &steps, Excluded::default()).unwrap();
    let passes: Vec<Vec<u64>> = (0..2)
        .flat_map(|at| indices(&plan, at).chunks(35).map(<[u64]>::to_vec).collect::<Vec<_>>())
        .collect();
    assert_eq!(passes.len(), 4);
    for (at, pass) in passes.iter().enumerate() {
        assert!(counts(pass.iter().copied()).len() == 35 && !passes[..at].contains(pass));
    }
}

#[test]
fn tables_of_many_passes_do_not_accumulate() {
    let steps = [
        OrderStep::Interleave { cycle: Some(512), block: 1, seed: Some(1) },
        OrderStep::Repeat(400),
    ];
    let plan = Plan::new(&[2; 2000], &steps, Excluded::default()).unwrap();
    let order = plan.epoch(0);
    let places = (0..400).map(|pass| order.at(pass * 4000).unwrap().index);
    assert!(places.collect::<BTreeSet<_>>().len() > 300);
    assert!(order.memo.len() < 200, "{}", order.memo.len());
}

fn part(shards: usize, steps: &[OrderStep]) -> PlanPart {
    PlanPart { shards, steps: steps.to_vec() }
}

#[test]
fn orders_are_concatenated() {
    let parts = vec![
        part(1, &[OrderStep::Take(2)]),
        part(2, &[OrderStep::Interleave { cycle: None, block: 1, seed: None }]),
        part(1, &[]),
    ];
    let plan = Plan::new(
        &[5, 2, 3, 2],
        &[OrderStep::Concat(parts), OrderStep::Skip(1)],
        Excluded::default(),
    )
    .unwrap();
    assert_eq!(indices(&plan, 0), [1, 5, 7, 6, 8, 9, 10, 11]);
}

proptest! {
    #[test]
    fn each_part_of_a_mixture_comes_in_its_own_order_over_all_epochs(
        shards in prop::collection::vec(1_u64..40, 1..5), seed: Option<u64>, shuffle in 0_u64..9,
        samples in prop::option::of(1_u64..200), weights in prop::collection::vec(1_u32..9, 5..6),
    ) {
        let steps = [OrderStep::Shuffle { seed: shuffle }];
        let weights: Vec<f64> = shards.iter().zip(weights).map(|(_, weight)| f64::from(weight)).collect();
        let parts = shards.iter().map(|_| part(1, &steps)).collect();
        let mixture = Mixture { parts, weights: weights.clone(), seed, samples };
        let plan = Plan::new(&shards, &[OrderStep::Mix(mixture)], Excluded::default()).unwrap();
        prop_assert_eq!(plan.epoch_len(), samples.unwrap_or(shards.iter().sum()));
        let all: Vec<u64> = (0..5).flat_map(|at| indices(&plan, at)).collect();
        let mut first = 0;
        for (samples, weight) in shards.iter().zip(&weights) {
            let own: Vec<u64> =
                all.iter().filter(|index| (first..first + samples).contains(index)).map(|index| index - first).collect();
            let alone = Plan::new(&[*samples], &steps, Excluded::default()).unwrap();
            let expected: Vec<u64> =
                (0..own.len() as u64).map(|number| alone.at(number).unwrap().index).collect();
            prop_assert_eq!(&own, &expected);
            let wanted = all.len() as f64 * weight / weights.iter().sum::<f64>();
            let period: f64 = weights.iter().sum();
            prop_assert!((own.len() as f64 - wanted).abs() <= period, "{} of {wanted}", own.len());
            first += samples;
        }
    }
}

#[test]
fn ranks_share_a_mixture() {
    let mixture = |shard: Option<Shard>| {
        let steps: Vec<_> = shard.into_iter().map(OrderStep::Shard).collect();
        Mixture {
            parts: vec![part(1, &steps), part(1, &steps)],
            weights: vec![3.0, 1.0],
            seed: Some(2),
            samples: None,
        }
    };
    let order = |steps: &[OrderStep]| {
        indices(&Plan::new(&[30, 10], steps, Excluded::default()).unwrap(), 1)
    };
    let behind: Vec<u64> = (0..4)
        .flat_map(|rank| {
            order(&[
                OrderStep::Mix(mixture(None)),
                OrderStep::Shard(by_record(rank, 4, Remainder::Uneven)),
            ])
        })
        .collect();
    assert!(counts(behind).values().eq([1; 40].iter()));
    let inside = |rank| OrderStep::Mix(mixture(Some(by_record(rank, 2, Remainder::Drop))));
    let before: Vec<u64> = (0..2).flat_map(|rank| order(&[inside(rank)])).collect();
    assert!(counts(before).values().eq([1; 40].iter()));
}

#[test]
fn steps_that_cannot_follow_one_another_are_refused() {
    let interleave = || OrderStep::Interleave { cycle: None, block: 1, seed: None };
    let shard = |by| OrderStep::Shard(Shard::new(0, 2, Remainder::Pad, by).unwrap());
    let take = || OrderStep::Take(5);
    let mix = |steps: &[OrderStep]| {
        OrderStep::Mix(Mixture {
            parts: vec![part(1, steps), part(1, &[])],
            weights: vec![1.0, 1.0],
            seed: None,
            samples: None,
        })
    };
    let orders: Vec<Vec<OrderStep>> = vec![
        vec![take(), interleave()],
        vec![shard(By::Record), interleave()],
        vec![interleave(), interleave()],
        vec![take(), shard(By::Shard)],
        vec![shard(By::Record), shard(By::Record)],
        vec![take(), mix(&[])],
        vec![mix(&[shard(By::Record)])],
        vec![mix(&[shard(By::Record)]), shard(By::Record)],
        vec![mix(&[take(), interleave()])],
        vec![mix(&[OrderStep::Skip(99)])],
        vec![OrderStep::Concat(vec![part(1, &[])])],
        vec![OrderStep::Repeat(1 << 61)],
        vec![OrderStep::Shard(Shard::new(0, 3, Remainder::Drop, By::Shard).unwrap())],
    ];
    let refused = orders.iter().map(|steps| {
        Plan::new(&[6, 4], steps, Excluded::default())
            .map(|plan| format!("{plan:?}"))
            .unwrap_err()
            .to_string()
    });
    insta::assert_snapshot!(refused.collect::<Vec<_>>().join("\n\n"));
    assert!(Plan::new(&[6, 4], &[shard(By::Shard), interleave()], Excluded::default()).is_ok());
}

#[test]
fn a_table_that_would_be_too_large_is_refused_before_it_is_built() {
    let steps = [OrderStep::Interleave { cycle: Some(1 << 20), block: 1, seed: None }];
    let error = Plan::new(&[1; 100_000], &steps, Excluded::default()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("cycle=100000 over 100000 shards"), "{error}");
}

#[test]
fn the_description_of_a_plan_is_short_and_distinguishes_shards() {
    let steps = [OrderStep::Interleave { cycle: Some(512), block: 1, seed: None }];
    let words =
        |shards: &[u64]| format!("{:?}", Plan::new(shards, &steps, Excluded::default()).unwrap());
    assert!(words(&[100; 5000]).len() < 200);
    assert_ne!(words(&[3, 5]), words(&[5, 3]));
}
