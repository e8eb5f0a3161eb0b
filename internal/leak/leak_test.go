package leak

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/must"
)

func TestValuesDiffer(t *testing.T) {
	a, b := NewValue(), NewValue()
	if a == b || len(a) != Size || len(b) != Size || len(Value) != Size {
		t.Errorf("got %q and %q", a, b)
	}
	if one, other := NewToken(), NewToken(); one == other {
		t.Error("two tokens are the same")
	}
}

// encodings are changes that may happen to a text on its way to the place where it leaks.
func encodings() map[string]func(text string) string {
	marshal := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return string(text)
	}
	return map[string]func(string) string{
		"plain":            func(s string) string { return s },
		"quoted":           func(s string) string { return fmt.Sprintf("%q", "line\n\""+s+`"\`) },
		"quoted twice":     func(s string) string { return fmt.Sprintf("%q", fmt.Sprintf("%q", "line\n\""+s)) },
		"hex":              func(s string) string { return hex.EncodeToString([]byte(s)) },
		"HEX":              func(s string) string { return fmt.Sprintf("%X", s) },
		"JSON string":      func(s string) string { return marshal(s + "<&>") },
		"JSON bytes":       func(s string) string { return marshal([]byte(s)) },
		"JSON in JSON":     func(s string) string { return marshal(marshal(map[string]string{"a": s})) },
		"base64 in JSON":   func(s string) string { return marshal(marshal([]byte(s))) },
		"base64 at 1":      func(s string) string { return base64.StdEncoding.EncodeToString([]byte("1" + s)) },
		"base64 at 2":      func(s string) string { return base64.StdEncoding.EncodeToString([]byte("12" + s)) },
		"URL base64":       func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s + "?")) },
		"query":            func(s string) string { return url.Values{"q": {"a b" + s}}.Encode() },
		"path":             url.PathEscape,
		"URL escapes":      func(s string) string { return strings.ReplaceAll(fmt.Sprintf("% X", " "+s), " ", "%") },
		"the first third":  func(s string) string { return s[:len(s)/3+4] + "..." },
		"sixteen of it":    func(s string) string { return "..." + s[len(s)-16:] },
		"a struct's field": func(s string) string { return fmt.Sprintf("%+v", struct{ password string }{s}) },
	}
}

func TestEveryFormIsFound(t *testing.T) {
	for name, encode := range encodings() {
		for begin := range 3 {
			text := "I1121 18:00:00.000000 " + encode("user:"[:begin]+NewValue()+", end") + "\n"
			if Check("x", text) == nil {
				t.Errorf("not found as %s: %s", name, text)
			}
		}
	}
}

// Tokens are found whoever made them, and also each of the two parts that identify somebody.
func TestTokensAreFound(t *testing.T) {
	b64 := base64.RawURLEncoding.EncodeToString
	header, claims := b64([]byte(`{"alg":"RS256","kid":"x"}`)), b64([]byte(`{"aud":["https://kubernetes.default.svc"],"exp":1}`))
	for name, encode := range encodings() {
		// A signature cannot be recognized.
		if name == "sixteen of it" {
			continue
		}
		for what, token := range map[string]string{"token": header + "." + claims + ".c2lnbmF0dXJl", "header": header, "claims": claims} {
			if Check("x", encode("Bearer "+token)) == nil {
				t.Errorf("%s: not found as %s: %s", what, name, encode(token))
			}
		}
	}
	other := b64([]byte(`{"typ":"JWT"}`)) + "." + b64([]byte(`{"sub":"x"}`)) + ".x"
	if Check("x", other) == nil || Check("x", NewToken()) == nil {
		t.Error("a token of another kind is not found")
	}
}

func TestNothingElseIsFound(t *testing.T) {
	for _, text := range []string{
		"", "canary", "a test of canaries, TestCanary- and CANARY-1", base64.StdEncoding.EncodeToString([]byte("canary-7f3a91")),
		`continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MX0`, strings.Repeat("eyJ.", 10),
	} {
		if err := Check("x", text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestCheckFiles(t *testing.T) {
	value := NewValue()
	for name, plant := range map[string]func(dir string) error{
		"a file": func(dir string) error { return os.WriteFile(filepath.Join(dir, "f"), []byte("x "+value), 0o600) },
		"a name": func(dir string) error { return os.WriteFile(filepath.Join(dir, value), nil, 0o600) },
		"a link": func(dir string) error { return os.Symlink("/x/"+value, filepath.Join(dir, "l")) },
	} {
		dir := filepath.Join(t.TempDir(), "a", "b")
		must.Do(t, os.MkdirAll(dir, 0o755))
		root := filepath.Dir(dir)
		if err := CheckFiles(root); err != nil {
			t.Errorf("%s, before: %v", name, err)
		}
		must.Do(t, plant(dir))
		if err := CheckFiles(root); err == nil || !strings.Contains(err.Error(), "leaks a value, plain") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := CheckFiles(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
}
