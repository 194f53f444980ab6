//! Hashes and signatures, against other people's programs: Node for canonical JSON, OpenSSL for Ed25519.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod wanted;

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use axp_protocol::canonical::canonical;
use axp_protocol::shape::Signature;
use axp_protocol::signature::{PrivateKey, verify};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Map, Value, json};
use wanted::wanted;

/// Canonical JSON as JavaScript has it: sorted by UTF-16 code units, everything else left to `JSON.stringify`.
const NODE: &str = r#"
const write = value => Array.isArray(value) ? '[' + value.map(write).join(',') + ']'
  : value && typeof value === 'object'
    ? '{' + Object.keys(value).sort().map(key => JSON.stringify(key) + ':' + write(value[key])).join(',') + '}'
    : JSON.stringify(value);
const lines = require('fs').readFileSync(0, 'utf8').split('\n').filter(line => line);
process.stdout.write(lines.map(line => write(JSON.parse(line)) + '\n').join(''));
"#;

fn number(random: &mut StdRng) -> Value {
    match random.random_range(0..6) {
        0 => json!(random.random::<i64>()),
        1 => json!(random.random::<u64>()),
        2 => json!(random.random_range(-1000..1000)),
        // Decimal fractions, as people write them.
        3 => json!(f64::from(random.random_range(-99_999i32..99_999)) / 1000.0),
        4 => json!(10f64.powi(random.random_range(-30..30))),
        _ => {
            let any = f64::from_bits(random.random());
            if any.is_finite() { json!(any) } else { json!(0.5) }
        }
    }
}

fn text(random: &mut StdRng) -> String {
    let length = random.random_range(0..12);
    let mut character = || match random.random_range(0..8) {
        0 => char::from(random.random_range(0..0x20u8)),
        1 => ['"', '\\', '/', '\u{7f}', '\u{2028}', '\u{2029}', '\u{feff}'][random.random_range(0..7)],
        // Either side of where UTF-16 and code points sort differently.
        2 => char::from_u32(random.random_range(0xe000..0x1_0010)).unwrap_or('\u{ffff}'),
        3 => char::from_u32(random.random_range(0x1_0000..0x11_0000)).unwrap_or('\u{1f600}'),
        4 => random.random_range('0'..='9'),
        _ => random.random_range('a'..='z'),
    };
    (0..length).map(|_| character()).collect()
}

fn value(random: &mut StdRng, depth: u32) -> Value {
    match random.random_range(0..if depth == 0 { 4 } else { 8 }) {
        0 => [Value::Null, json!(true), json!(false)][random.random_range(0..3)].clone(),
        1 => json!(text(random)),
        2 | 3 => number(random),
        4 | 5 => (0..random.random_range(0..5)).map(|_| value(random, depth - 1)).collect(),
        _ => {
            let members = (0..random.random_range(0..6)).map(|_| (text(random), value(random, depth - 1)));
            Value::Object(members.collect::<Map<_, _>>())
        }
    }
}

fn run(program: &OsStr, args: &[&OsStr], folder: &Path, stdin: &str) -> String {
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    let text = stdin.to_owned();
    let writer = std::thread::spawn(move || pipe.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    let _ = writer.join();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn canonical_json_is_what_javascript_makes_of_it() {
    let Some(node) = wanted("AXP_NODE") else { return };
    let seed: u64 = rand::random();
    let mut random = StdRng::seed_from_u64(seed);
    let lines: Vec<String> = (0..10_000).map(|_| value(&mut random, 4).to_string()).collect();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let answer = run(&node, &["-e".as_ref(), NODE.as_ref()], here, &lines.join("\n"));
    let answers: Vec<_> = answer.split_terminator('\n').collect();
    assert_eq!(answers.len(), lines.len());
    for (line, expected) in lines.iter().zip(answers) {
        // As it is read from the wire.
        let read: Value = serde_json::from_str(line).expect("JSON");
        let ours = canonical(&read);
        let same = ours.chars().zip(expected.chars()).take_while(|(a, b)| a == b).count();
        let near = |text: &str| text.chars().skip(same.saturating_sub(20)).take(60).collect::<String>();
        assert!(ours == expected, "seed {seed}: {:?} is {:?} in JavaScript", near(&ours), near(expected));
    }
}

#[test]
fn signatures_hold_for_openssl_and_its_for_us() {
    let Some(openssl) = wanted("AXP_OPENSSL") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    let call = |args: &[&str]| {
        let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        run(&openssl, &args, dir.path(), "")
    };
    let manifest = json!({"version": 1, "model": "漢字 \u{1f600}", "headCommit": "a".repeat(40), "n": 1e21});
    std::fs::write(at("message"), canonical(&manifest)).expect("a file");

    // Ours, checked there.
    let key = PrivateKey::from_seed(&rand::random());
    let signature = key.sign(&manifest).expect("signed");
    std::fs::write(at("our.pub.pem"), &*signature.public_key).expect("a file");
    std::fs::write(at("our.sig"), STANDARD.decode(&*signature.signature).expect("base64")).expect("a file");
    let verify_args = |key: &'static str, sig: &'static str| {
        ["pkeyutl", "-verify", "-pubin", "-inkey", key, "-rawin", "-in", "message", "-sigfile", sig]
    };
    call(&verify_args("our.pub.pem", "our.sig"));

    // Theirs, checked here; the key file is one we can sign with, too.
    call(&["genpkey", "-algorithm", "ed25519", "-out", "their.pem"]);
    call(&["pkey", "-in", "their.pem", "-pubout", "-out", "their.pub.pem"]);
    call(&["pkeyutl", "-sign", "-inkey", "their.pem", "-rawin", "-in", "message", "-out", "their.sig"]);
    let read = |name: &str| std::fs::read(at(name)).expect("a file");
    let public = String::from_utf8(read("their.pub.pem")).expect("text");
    let theirs: Signature =
        serde_json::from_value(json!({"publicKey": public, "signature": STANDARD.encode(read("their.sig"))}))
            .expect("a signature");
    verify(&manifest, &theirs).expect("it holds");
    verify(&json!({"version": 2}), &theirs).expect_err("it is of something else");
    let pem = String::from_utf8(read("their.pem")).expect("text");
    let same = PrivateKey::from_pem(&pem).expect("a key").sign(&manifest).expect("signed");
    assert_eq!(*same.signature, *theirs.signature, "Ed25519 signatures are deterministic");
}
