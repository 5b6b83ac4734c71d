use super::*;
use crate::access::tests::{find, lender, request};

const TOKEN: (&str, &str) = ("CLOUDSDK_AUTH_ACCESS_TOKEN", "hidden");

fn google() -> Box<dyn Dialect> {
    find("gs://data", &[TOKEN]).unwrap().dialect
}

#[test]
fn an_object_is_asked_for_as_it_is_and_in_one_version() {
    let access = find("gs://data", &[TOKEN]).unwrap();
    let request = request(&access, "a/b c+d%");
    assert_eq!(
        request.url,
        "https://storage.googleapis.com/storage/v1/b/data/o/a%2Fb%20c%2Bd%25?alt=media&ifGenerationMatch=v"
    );
    let headers: Vec<(&str, &str)> = request.headers.iter().map(|(name, value)| (*name, &**value)).collect();
    let expected = [
        ("range", "bytes=5-9"),
        ("authorization", "Bearer hidden"),
        ("accept-encoding", "gzip"),
    ];
    assert_eq!(headers, expected);
    assert!(!format!("{access:?}").contains("hidden"));
}

#[test]
fn credentials_are_those_of_googles_tools() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let person = r#"{"type": "authorized_user", "client_id": "me", "client_secret": "hidden", "refresh_token": "hidden"}"#;
    let home = dir.path().to_str().unwrap().to_owned();
    let home = ("HOME", &*home);
    let service = |variables: &[(&str, &str)]| lender(&find("gs://data", variables).unwrap());
    assert_eq!(service(&[]), r#"GoogleMachine { host: "metadata.google.internal" }"#);
    assert_eq!(
        service(&[home, ("GCE_METADATA_HOST", "here:1")]),
        r#"GoogleMachine { host: "here:1" }"#
    );
    assert_eq!(service(&[home, ("NO_GCE_CHECK", "true")]), "Nobody");
    write(".config/gcloud/application_default_credentials.json", person);
    let shown = service(&[home]);
    assert!(
        shown.starts_with("Person { url: \"https://oauth2.googleapis.com/token\"") && !shown.contains("hidden"),
        "{shown}"
    );
    assert_eq!(
        service(&[home, ("STORAGE_EMULATOR_HOST", "127.0.0.1:1")]),
        "Nobody",
        "an emulator gets none"
    );
    assert_eq!(service(&[home, TOKEN]), "fixed");
    for (text, words) in [
        ("{}", "is not a file of Google's with credentials"),
        (
            r#"{"type": "service_account", "private_key": "hidden"}"#,
            "its private_key is not an RSA key",
        ),
        (
            r#"{"type": "external_account"}"#,
            "of type external_account are not supported; write export CLOUDSDK_AUTH_ACCESS_TOKEN=",
        ),
    ] {
        let path = write("named.json", text);
        let line = find("gs://data", &[home, ("GOOGLE_APPLICATION_CREDENTIALS", &path)])
            .unwrap_err()
            .to_string();
        assert!(
            line.starts_with(&path) && line.contains(words) && !line.contains("hidden"),
            "{line}"
        );
    }
    let missing = find("gs://data", &[("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")])
        .unwrap_err()
        .to_string();
    assert!(missing.starts_with("cannot read /nowhere"), "{missing}");
}

#[test]
fn an_emulator_may_be_named_without_a_scheme() {
    for (text, place) in [("127.0.0.1:4443", "http://127.0.0.1:4443"), ("https://here/", "https://here")] {
        assert_eq!(find("gs://data", &[("STORAGE_EMULATOR_HOST", text)]).unwrap().place, place);
    }
}

#[test]
fn a_page_has_keys_as_they_are() {
    let text = r#"{"kind": "storage#objects", "nextPageToken": "t", "prefixes": ["p/a/"], "items": [
        {"name": "p//x\u0001 ", "size": "18446744073709551615", "generation": "7", "timeCreated": "2026-01-02T03:04:05.678Z"}]}"#;
    let page = google().read_page(text).unwrap();
    assert_eq!(page.folders, [Ok("p/a/".to_owned())]);
    assert_eq!(page.next, NextPage::Page("t".into()));
    let object = Object {
        key: Ok("p//x\u{1} ".into()),
        etag: "7".into(),
        size: u64::MAX,
        modified_ms: 1_767_323_045_678,
    };
    assert_eq!(page.objects, [object]);
    let last = google().read_page(r#"{"kind": "storage#objects"}"#).unwrap();
    assert_eq!((last.objects.len(), last.next), (0, NextPage::End));
    for bad in ["", "{}", "[]", "<html>", r#"{"kind": "storage#bucket"}"#, &text[..text.len() - 1]] {
        assert!(matches!(google().read_page(bad), Err(RequestFault::Passing(_))), "{bad}");
    }
    for (from, to) in [("\"7\"", "\"\""), ("2026-01", "2026-13")] {
        assert!(
            matches!(google().read_page(&text.replace(from, to)), Err(RequestFault::Lasting(_))),
            "{to}"
        );
    }
}

#[test]
fn refusals_have_words() {
    let refused = google().read_refusal(r#"{"error": {"code": 403, "message": "no", "errors": [{"reason": "forbidden"}]}}"#);
    assert_eq!(refused.words(403.try_into().unwrap()), "HTTP status 403: no");
    assert_eq!(google().read_refusal("Not Found").words(404.try_into().unwrap()), "HTTP status 404");
}
