use super::*;
use crate::access::tests::{find, lender, request};

/// An invented key.
const KEY: &str = "c2VjcmV0IG9mIHRoZSB0ZXN0";

fn azure() -> Box<dyn Dialect> {
    find("az://data", &[("AZURE_STORAGE_ACCOUNT", "me")]).unwrap().dialect
}

#[test]
fn the_account_is_named_by_variables() {
    let place = |variables: &[(&str, &str)]| find("az://data", variables).unwrap().place;
    assert_eq!(place(&[("AZURE_STORAGE_ACCOUNT", "me")]), "https://me.blob.core.windows.net");
    for (text, expected) in [
        ("AccountName=me;AccountKey=QUJD", "https://me.blob.core.windows.net"),
        (
            "DefaultEndpointsProtocol=http;AccountName=me;EndpointSuffix=core.chinacloudapi.cn;",
            "http://me.blob.core.chinacloudapi.cn",
        ),
        (
            "AccountName=me;AccountKey=QUI=;BlobEndpoint=http://127.0.0.1:1/me/;",
            "http://127.0.0.1:1/me",
        ),
        ("BlobEndpoint=https://here;SharedAccessSignature=sig=x", "https://here"),
    ] {
        assert_eq!(place(&[("AZURE_STORAGE_CONNECTION_STRING", text)]), expected);
    }
    for variables in [
        [].as_slice(),
        &[("AZURE_STORAGE_ACCOUNT", "evil.org/")],
        &[("AZURE_STORAGE_CONNECTION_STRING", "BlobEndpoint=https://here;AccountKey=QUI=")],
    ] {
        let line = find("az://data", variables).unwrap_err().to_string();
        assert!(
            line.contains("set AZURE_STORAGE_ACCOUNT or AZURE_STORAGE_CONNECTION_STRING"),
            "{line}"
        );
    }
    let bad = find("az://data", &[("AZURE_STORAGE_ACCOUNT", "me"), ("AZURE_STORAGE_KEY", "hidden!")])
        .unwrap_err()
        .to_string();
    assert!(bad.contains("is not Base64") && !bad.contains("hidden"), "{bad}");
}

#[test]
fn credentials_are_those_of_azures_tools() {
    let service =
        |variables: &[(&str, &str)]| lender(&find("az://data", &[&[("AZURE_STORAGE_ACCOUNT", "me")], variables].concat()).unwrap());
    let client = ("AZURE_CLIENT_ID", "c");
    let tenant = ("AZURE_TENANT_ID", "t");
    let secret = ("AZURE_CLIENT_SECRET", "hidden");
    let file = ("AZURE_FEDERATED_TOKEN_FILE", "/token");
    assert_eq!(service(&[]), r#"AzureMachine { url: "http://169.254.169.254", client: None }"#);
    assert!(service(&[client, secret]).starts_with("AzureMachine"), "there is no tenant");
    assert_eq!(
        service(&[client, tenant, secret]),
        r#"Login { url: "https://login.microsoftonline.com/t/oauth2/v2.0/token", client: "c", proof: Password(SecretText) }"#
    );
    assert!(service(&[client, tenant, file]).ends_with(r#"proof: Token("/token") }"#));
    assert_eq!(service(&[client, tenant, secret, ("AZURE_STORAGE_KEY", KEY)]), "fixed");
    assert_eq!(service(&[("AZURE_STORAGE_SAS_TOKEN", "?sig=x")]), "fixed");
}

#[test]
fn what_is_signed_is_what_azure_describes() {
    let azure = Azure {
        origin: "http://h".into(),
        path: "/me/data".into(),
        account: "me".into(),
    };
    let headers = [
        ("range", "bytes=5-9".to_owned()),
        ("if-match", "\"v\"".to_owned()),
        ("x-ms-date", "now".to_owned()),
        ("x-ms-version", VERSION.to_owned()),
    ];
    let own = format!("x-ms-date:now\nx-ms-version:{VERSION}\n");
    assert_eq!(
        azure.to_sign("/me/data/a%20b", &[], &headers),
        format!("GET\n\n\n\n\n\n\n\n\"v\"\n\n\nbytes=5-9\n{own}/me/me/data/a%20b")
    );
    assert_eq!(
        azure.to_sign("/me/data", &[("comp", "list"), ("prefix", "a b/")], &headers[2..]),
        format!("GET\n\n\n\n\n\n\n\n\n\n\n\n{own}/me/me/data\ncomp:list\nprefix:a b/")
    );
}

#[test]
fn an_object_is_asked_for_in_one_version() {
    let with = |name: &'static str, value: &'static str| {
        request(
            &find("az://data", &[("AZURE_STORAGE_ACCOUNT", "me"), (name, value)]).unwrap(),
            "a/b c%",
        )
    };
    let url = "https://me.blob.core.windows.net/data/a/b%20c%25";
    let asked = with("AZURE_STORAGE_KEY", KEY);
    assert_eq!(asked.url, url);
    let of = |name: &str| asked.headers.iter().find(|(header, _)| *header == name).map(|(_, value)| &**value);
    assert_eq!((of("range"), of("if-match")), (Some("bytes=5-9"), Some("\"v\"")));
    assert!(of("x-ms-date").unwrap().ends_with(" GMT") && of("authorization").unwrap().starts_with("SharedKey me:"));
    let shared = with("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=x%2B");
    assert_eq!(shared.url, format!("{url}?sv=1&sig=x%2B"));
    assert!(shared.headers.iter().all(|(name, _)| *name != "authorization"));
}

fn listing(blobs: &str, marker: &str) -> String {
    format!(
        "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults><Prefix>p/</Prefix><Blobs>{blobs}</Blobs>{marker}</EnumerationResults>"
    )
}

#[test]
fn a_page_has_keys_as_they_are() {
    let blob = |name: &str, kind: &str| {
        format!(
            "<Blob>{name}<Properties><Last-Modified>Fri, 02 Jan 2026 03:04:05 GMT</Last-Modified><Etag>0x8D</Etag>\
             <Content-Length>7</Content-Length>{kind}</Properties><OrMetadata /></Blob>"
        )
    };
    let blobs = [
        blob("<Name>p/a &amp;&lt;b//c</Name>", "<ResourceType>file</ResourceType>"),
        "<BlobPrefix><Name>p/d/</Name></BlobPrefix>".to_owned(),
        blob("<Name Encoded=\"true\">p/%01+%25</Name>", ""),
        blob("<Name>p/dir</Name>", "<ResourceType>directory</ResourceType>"),
        blob("<Name> p/blanks </Name>", ""),
    ];
    let page = azure().read_page(&listing(&blobs.concat(), "<NextMarker>m</NextMarker>")).unwrap();
    let keys: Vec<&str> = page.objects.iter().map(|object| object.key.as_deref().unwrap()).collect();
    assert_eq!(keys, ["p/a &<b//c", "p/\u{1}+%", "p/dir/", " p/blanks "]);
    assert_eq!((page.folders, page.next), (vec![Ok("p/d/".to_owned())], NextPage::Page("m".into())));
    let first = &page.objects[0];
    assert_eq!((&*first.etag, first.size, first.modified_ms), ("0x8D", 7, 1_767_323_045_000));
    assert_eq!(azure().read_page(&listing("", "<NextMarker />")).unwrap().next, NextPage::End);
    for bad in ["", "<html></html>", &listing("", ""), &listing("", "<NextMarker />")[..60]] {
        assert!(matches!(azure().read_page(bad), Err(RequestFault::Passing(_))), "{bad}");
    }
    for (from, to) in [("0x8D", ""), ("02 Jan", "32 Jan")] {
        assert!(
            matches!(
                azure().read_page(&listing(&blobs.concat().replace(from, to), "<NextMarker />")),
                Err(RequestFault::Lasting(_))
            ),
            "{to}"
        );
    }
}

#[test]
fn refusals_have_words() {
    let refused = azure().read_refusal("\u{feff}<Error><Code>AuthenticationFailed</Code><Message>no</Message></Error>");
    assert_eq!(refused.words(403.try_into().unwrap()), "AuthenticationFailed: no");
    let explained = |code: &str, is_signed| {
        let refused = StoreRefusal {
            code: code.into(),
            message: String::new(),
        };
        azure().explain(404.try_into().unwrap(), &HeaderMap::new(), &refused, is_signed)
    };
    assert!(matches!(explained("ContainerNotFound", true), Some(RequestFault::Lasting(_))));
    assert!(matches!(explained("ResourceNotFound", false), Some(RequestFault::Denied(_))));
    assert!(explained("ResourceNotFound", true).is_none() && explained("BlobNotFound", false).is_none());
}
