use rusty_s3::Credentials as AccessKey;

use super::*;
use crate::access::{
    StoreAccess,
    tests::{find, lender, request},
};

fn fixed(access: &StoreAccess) -> (String, String, Option<String>) {
    match &access.credentials {
        Credentials::Fixed(credential) => {
            let key = key_of(Some(credential)).unwrap();
            (key.key().to_owned(), key.secret().to_owned(), key.token().map(str::to_owned))
        }
        Credentials::Lent { lender, .. } => panic!("{lender:?}"),
    }
}

/// Returns endpoint, whether the bucket is a part of the path, and region.
fn where_is(access: &StoreAccess) -> (String, bool, String) {
    let wanted = WantedObject {
        key: "k",
        range: None,
        version: None,
    };
    let url: Url = access
        .dialect
        .object(&wanted, Some(&Credential::AccessKey(AccessKey::new("K", "S"))))
        .url
        .parse()
        .unwrap();
    let (_, scope) = url.query_pairs().find(|(name, _)| name == "X-Amz-Credential").unwrap();
    (
        format!("{}/", access.place),
        url.path() != "/k",
        scope.split('/').nth(2).unwrap().to_owned(),
    )
}

#[test]
fn the_endpoint_is_amazons_unless_another_is_named() {
    let at = |bucket: &str, variables: &[(&str, &str)]| {
        let access = find(&format!("s3://{bucket}"), variables).unwrap();
        where_is(&access)
    };
    let text = |url: &str, is_path: bool, region: &str| (url.to_owned(), is_path, region.to_owned());
    assert_eq!(at("b", &[]), text("https://s3.us-east-1.amazonaws.com/", false, "us-east-1"));
    assert_eq!(
        at("a.b", &[("AWS_REGION", "eu-west-1")]),
        text("https://s3.eu-west-1.amazonaws.com/", true, "eu-west-1")
    );
    assert_eq!(
        at("b", &[("AWS_DEFAULT_REGION", "cn-north-1")]),
        text("https://s3.cn-north-1.amazonaws.com.cn/", false, "cn-north-1")
    );
    let two = [("AWS_ENDPOINT_URL", "http://a:1"), ("AWS_ENDPOINT_URL_S3", "https://b/path")];
    assert_eq!(at("b", &two), text("https://b/path/", true, "us-east-1"));
    for bad in ["a:1", "ftp://a", "http://", "http://a/?x", "not"] {
        let line = find("s3://b", &[("AWS_ENDPOINT_URL", bad)]).unwrap_err().to_string();
        assert!(line.contains(bad) && line.contains("https://HOST"), "{line}");
    }
    for bad in [
        "https://key:secret@a",
        "key:secret@a",
        "https://key:secret@",
        "https://key:se/cret@a:1/?x",
    ] {
        let line = find("s3://b", &[("AWS_ENDPOINT_URL", bad)]).unwrap_err().to_string();
        assert!(!line.contains("cret") && line.contains("https://HOST"), "{line}");
    }
}

#[test]
fn variables_go_before_profiles() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join(".aws")).unwrap();
    let credentials = "[default]\naws_access_key_id=K\naws_secret_access_key = S=/+ \n# no\n[ other ]\nAWS_ACCESS_KEY_ID = K2\n\
                       aws_secret_access_key=S2\naws_session_token=T2\n";
    std::fs::write(dir.path().join(".aws/credentials"), credentials).unwrap();
    let config = "[default]\nregion=r1\ns3 =\n  endpoint_url = x\n[profile other]\nregion = r2\nendpoint_url = http://e\n[profile role]\nrole_arn = a\n";
    std::fs::write(dir.path().join(".aws/config"), config).unwrap();
    let home = ("HOME", dir.path().to_str().unwrap());
    let access = find("s3://b", &[home]).unwrap();
    assert_eq!(fixed(&access), ("K".into(), "S=/+".into(), None));
    assert_eq!(
        where_is(&access),
        ("https://s3.r1.amazonaws.com/".into(), false, "r1".into()),
        "an indented line is not a key of the profile"
    );
    let access = find("s3://b", &[home, ("AWS_PROFILE", "other")]).unwrap();
    assert_eq!(fixed(&access), ("K2".into(), "S2".into(), Some("T2".into())));
    assert_eq!(where_is(&access), ("http://e/".into(), true, "r2".into()));
    let variables = [
        home,
        ("AWS_ACCESS_KEY_ID", "V"),
        ("AWS_SECRET_ACCESS_KEY", "W"),
        ("AWS_SESSION_TOKEN", "X"),
    ];
    assert_eq!(
        fixed(&find("s3://b", &variables).unwrap()),
        ("V".into(), "W".into(), Some("X".into()))
    );
    let refused = |variables: &[(&str, &str)]| find("s3://b", variables).unwrap_err().to_string();
    assert!(refused(&[home, ("AWS_PROFILE", "nobody")]).contains("'nobody'"));
    assert!(refused(&[home, ("AWS_PROFILE", "role")]).contains("role_arn, which is not supported; write eval"));
    assert!(refused(&[("AWS_ACCESS_KEY_ID", "V")]).contains("set both"));
    assert!(refused(&[("AWS_MAX_ATTEMPTS", "0")]).contains("between 1 and 100"));
}

#[test]
fn services_are_asked_when_there_is_nothing_else() {
    let service = |variables: &[(&str, &str)]| lender(&find("s3://b", variables).unwrap());
    assert_eq!(service(&[("AWS_EC2_METADATA_DISABLED", "TRUE")]), "Nobody");
    assert_eq!(service(&[]), r#"Ec2Machine { url: "http://169.254.169.254" }"#);
    let container = [
        ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x"),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "hidden"),
    ];
    assert_eq!(
        service(&container),
        r#"Container { url: "http://169.254.170.2/x", token: Text(SecretText) }"#
    );
}

#[test]
fn no_secret_is_printed() {
    let access = find(
        "s3://b",
        &[
            ("AWS_ACCESS_KEY_ID", "visible"),
            ("AWS_SECRET_ACCESS_KEY", "hidden"),
            ("AWS_SESSION_TOKEN", "hidden"),
        ],
    )
    .unwrap();
    assert!(!format!("{access:?}").contains("hidden"));
}

#[test]
fn a_web_identity_goes_before_the_profile() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config");
    std::fs::write(
        &config,
        "[default]\naws_access_key_id=K\naws_secret_access_key=S\n[profile pod]\nrole_arn=R\nweb_identity_token_file=/t\n",
    )
    .unwrap();
    let config = ("AWS_CONFIG_FILE", config.to_str().unwrap());
    let service = |variables: &[(&str, &str)]| lender(&find("s3://b", variables).unwrap());
    let named = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/token"),
        ("AWS_ROLE_ARN", "arn"),
        config,
        ("AWS_REGION", "cn-north-1"),
    ];
    let shown = service(&named);
    assert!(
        shown.starts_with("WebIdentity") && shown.contains("sts.cn-north-1.amazonaws.com.cn"),
        "{shown}"
    );
    assert!(service(&[config, ("AWS_PROFILE", "pod")]).contains(r#"token: "/t", role: "R", session: "forebay""#));
    assert_eq!(
        service(&[&named[..], &[("AWS_ACCESS_KEY_ID", "V"), ("AWS_SECRET_ACCESS_KEY", "W")]].concat()),
        "fixed"
    );
    let line = find("s3://b", &named[..1]).unwrap_err().to_string();
    assert!(line.ends_with("set $AWS_ROLE_ARN, or the profile's role_arn"), "{line}");
    let line = find("s3://b", &[&named[..], &[("AWS_ENDPOINT_URL_STS", "nowhere")]].concat())
        .unwrap_err()
        .to_string();
    assert!(line.contains("'nowhere' is not a URL"), "{line}");
}

#[test]
fn an_object_is_asked_for_in_one_version() {
    let access = find("s3://b", &[("AWS_ENDPOINT_URL", "http://s3")]).unwrap();
    let request = request(&access, "day=1/a b+c%");
    assert_eq!(request.url, "http://s3/b/day%3D1/a%20b%2Bc%25");
    let header = |name: &'static str, value: &str| (name, value.to_owned());
    assert_eq!(request.headers, [header("range", "bytes=5-9"), header("if-match", "\"v\"")]);
}
