package status

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

const head = `{"apiVersion": "` + APIVersion + `", "kind": "` + Kind + `"`

// TestWhatIsNoReport: a reader refuses a format that another release may use differently, and says what it got.
func TestWhatIsNoReport(t *testing.T) {
	for name, test := range map[string]struct{ body, want string }{
		"newer": {
			`{"apiVersion": "status.refvol.dev/v2", "kind": "PluginStatus", "volumes": "none"}`,
			`apiVersion: Invalid value: "status.refvol.dev/v2", of kind "PluginStatus": this release reads status.refvol.dev/v1alpha2 of kind PluginStatus: use the command of the plugin's own release`,
		},
		"older": {
			`{"apiVersion": "status.refvol.dev/v1alpha1", "kind": "PluginStatus", "volumes": [{"objects": [{"kind": "Secret", "shown": {"uid": "u"}}]}]}`,
			`apiVersion: Invalid value: "status.refvol.dev/v1alpha1"`,
		},
		"other kind": {`{"apiVersion": "` + APIVersion + `", "kind": "List"}`, `of kind "List"`},
		"no version": {`{}`, `apiVersion: Invalid value: ""`},
		"hostile":    {`{"apiVersion": "\u001b[2J` + strings.Repeat("x", 100) + `"}`, `"\x1b[2J` + strings.Repeat("x", 60) + `"`},
		"no JSON":    {"<html>\x1b[2J", "no JSON: invalid character '<'"},
		"empty":      {"", "no JSON: "},
		"cut off":    {head + `, "volumes": [{`, "no JSON: unexpected end of JSON input"},
		"other form": {head + `, "volumes": {}}`, "cannot unmarshal object into Go struct field Report.volumes"},
	} {
		_, err := Read(strings.NewReader(test.body))
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
	if _, err := Read(strings.NewReader(head + `, "newField": 1, "objects": [{"newField": {}}], "volumes": [{"newField": {}, "objects": [{"object": 0, "newField": 1}]}]}`)); err != nil {
		t.Errorf("a field more: %v", err)
	}
	if _, err := Read(io.MultiReader(strings.NewReader(head), failing{})); !errors.Is(err, errFault) || errors.Is(err, ErrFormat) {
		t.Errorf("a connection that breaks: %v", err)
	}
}

var errFault = errors.New("injected fault")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errFault }

// TestHostileTexts: characters that control a terminal are escaped in printed text, and JSON keeps its meaning.
func TestHostileTexts(t *testing.T) {
	const hostile, want = "a\x1b[2J\r\u0085\u202e\u2028\U000e0001b ü\tx", `a\u001b[2J\u000d\u0085\u202e\u2028\udb40\udc01b ü\u0009x`
	if got := Printable(hostile); got != want {
		t.Errorf("got %s", got)
	}
	if got := Printable(want); got != want {
		t.Errorf("what can be printed has become %q", got)
	}
	report := sample(Volume{Name: hostile, Condition: hostile, Reason: hostile, Pod: Pod{Name: hostile}, Objects: []VolumeObject{{Object: &Object{Name: hostile}, Shown: &Version{ResourceVersion: hostile}}}})
	report.Node, report.MissingRights = hostile, []string{hostile}
	for _, output := range []string{OutputWide, OutputTable, OutputJSON, OutputYAML} {
		var out bytes.Buffer
		write := func() error { return Encode(&out, output, report) }
		if output == OutputWide || output == OutputTable {
			write = func() error { return Table{Wide: output == OutputWide}.Write(&out, &Counts{}, report) }
		}
		if err := write(); err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexFunc(out.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%s has %.10q", output, out.String()[i:])
		}
		if output != OutputJSON {
			continue
		}
		read, err := Read(&out)
		if err != nil || !reflect.DeepEqual(read, report) {
			t.Errorf("%v: got %+v", err, read)
		}
	}
}

// serve returns the address of a server with a handler.
func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func fetch(ctx context.Context, address string) (*Report, error) {
	return Fetch(ctx, &http.Transport{DisableKeepAlives: true}, address)
}

// TestRefusals: a plugin that has no status is told apart from one that can't answer now. Its text is printed without control characters.
func TestRefusals(t *testing.T) {
	for code, otherRelease := range map[int]bool{
		http.StatusNotFound: true, http.StatusForbidden: false, http.StatusInternalServerError: false, http.StatusServiceUnavailable: false,
	} {
		address := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not\x1b here", code) }))
		_, err := fetch(t.Context(), address)
		want := fmt.Sprintf("HTTP status %d: not\\u001b here", code)
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrFormat) != otherRelease {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
