use super::*;

fn identity(samples: u64, settings: &[(&str, &str)]) -> Identity {
    let fingerprint = Fingerprint::of([b"a".as_slice()]).in_hex();
    let settings = settings.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    Identity {
        data: Data { kind: "arrays".to_owned(), samples, fingerprint },
        settings: settings.collect(),
        version_5: Fingerprint::of([b"b".as_slice()]),
    }
}

fn made(waiting: &[(u64, u64)]) -> RunState {
    let standing = FaultCounts { seen: 7, faults: 2, recent: [3, 5].into() };
    let waiting = waiting.to_vec();
    let position = Position { slot: 7, filled: 2, tried: 0, repeated: 0, waiting, standing };
    let identity = identity(10, &[("batch", "size=4"), ("order", "shuffle(seed=7)")]);
    let mut state = RunState::new(&identity, (1, 2), 3);
    state.position = SavedPosition::of(&position);
    let ranks = Rest::Ranks { from: vec![5, 3, 4], to: vec![9, 9, 8], waiting: vec![2, 7] };
    state.rest = Some(SavedRest { world: 4, layers: vec![Rest::From(12), ranks] });
    state
}

#[test]
fn a_state_survives_a_round_trip_through_json_in_any_order_of_its_fields() {
    let mut waiting: Vec<_> = (0..200).map(|at| (1_000_000 + at * 7, 1_000_000 + at * 7)).collect();
    waiting[7].1 = 12;
    let state = made(&waiting);
    let json = state.to_json();
    let read = RunState::from_json(&json).unwrap();
    assert_eq!((read.position.position().waiting, &read), (waiting, &state));
    assert!(json.len() < 1500, "{}", json.len());
    let Value::Object(fields) = serde_json::from_str(&json).unwrap() else { panic!("{json}") };
    let fields: Vec<_> = fields.iter().rev().map(|(name, it)| format!("{name:?}: {it}")).collect();
    let turned = format!("{{{}}}", fields.join(",\n"));
    assert_eq!(RunState::list_from_json(&format!("[{turned}, {json}]")).unwrap(), [read, state]);
}

#[test]
fn a_state_with_a_changed_byte_is_refused_or_equal() {
    let state = made(&[(3, 3), (5, 1)]);
    let text = state.to_json().into_bytes();
    for (at, other) in
        (0..text.len()).flat_map(|at| [(at, b'0'), (at, b'7'), (at, b'-'), (at, b' ')])
    {
        let mut changed = text.clone();
        changed[at] = other;
        let read = RunState::from_json(&String::from_utf8(changed).unwrap());
        assert!(read.is_err() || read.unwrap() == state, "byte {at} is {other}");
    }
    for end in 0..text.len() {
        assert!(RunState::from_json(std::str::from_utf8(&text[..end]).unwrap()).is_err(), "{end}");
    }
}

#[test]
fn a_mismatch_names_all_differences() {
    let state = made(&[]);
    let other = |samples, settings: &[_]| identity(samples, settings);
    let refusals = [
        other(9, &[("batch", "size=4"), ("order", "shuffle(seed=7)")]),
        other(10, &[("batch", "size=8")]),
        other(10, &[("batch", "size=4"), ("filter", "x > 5"), ("order", "shuffle(seed=7)")]),
    ]
    .map(|now| state.must_fit(&now).unwrap_err().to_string());
    let versions = [4, 7].map(|version| {
        let json = state.to_json().replace("\"version\":6", &format!("\"version\":{version}"));
        RunState::from_json(&json).unwrap_err().to_string()
    });
    let damaged = ["hello", "5", "{\"version\": 6}"]
        .map(|text| RunState::from_json(text).unwrap_err().to_string());
    insta::assert_snapshot!([&refusals[..], &versions, &damaged].concat().join("\n\n"));
}

#[test]
fn long_settings_are_kept_short_and_still_differ() {
    let long = |end: &str| short("äöü".repeat(1000) + end);
    assert!(long("a").len() <= LONGEST);
    assert_ne!(long("a"), long("b"));
    assert_eq!(short("short".to_owned()), "short");
}
