package status

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
)

func sample(volumes ...Volume) *Report {
	report := &Report{Volumes: volumes, Header: Header{
		APIVersion: APIVersion, Kind: Kind, Driver: "csi.refvol.dev", Node: "node-1", Version: "v0", ObservedAt: noon,
	}}
	report.Number()
	return report
}

func stream(report *Report) *Stream {
	return &Stream{
		Header: report.Header, Objects: slices.Values(report.Objects), Others: report.Others,
		Volumes: func(yield func(*Volume) bool) {
			for i := range report.Volumes {
				if !yield(&report.Volumes[i]) {
					return
				}
			}
		},
	}
}

// answering returns a handler that answers each question with what report returns.
func answering(report func() *Report) http.Handler {
	return Handler(func([]ObjectKey) *Stream { return stream(report()) })
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func do(t *testing.T, method, url string) (status int, header http.Header, body string) {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(t.Context(), method, url, nil))(t)
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	must.Do(t, err)
	defer response.Body.Close()
	text := must.Get(io.ReadAll(response.Body))(t)
	return response.StatusCode, response.Header, string(text)
}

func TestServer(t *testing.T) {
	want := sample(Volume{VolumeID: "v1", Reason: strings.Repeat("long ", 1000), Since: noon, Objects: []VolumeObject{}})
	address := serve(t, answering(func() *Report { return want }))
	got, err := fetch(t.Context(), address)
	if err != nil || got.Node != "node-1" || len(got.Volumes) != 1 || got.Volumes[0].VolumeID != "v1" || !got.Volumes[0].Since.Equal(noon) {
		t.Errorf("got %+v, %v", got, err)
	}
	_, header, _ := do(t, http.MethodGet, "http://"+address+Path)
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
	} {
		expect.Equal(t, name, header.Get(name), value)
	}
	for _, wrong := range []struct {
		method, path string
		status       int
	}{
		{http.MethodPost, Path, http.StatusMethodNotAllowed},
		{http.MethodDelete, Path, http.StatusMethodNotAllowed},
		{http.MethodGet, "/", http.StatusNotFound},
		{http.MethodGet, "/metrics", http.StatusNotFound},
		{http.MethodGet, "/debug/pprof/", http.StatusNotFound},
	} {
		got, _, _ := do(t, wrong.method, "http://"+address+wrong.path)
		expect.Equal(t, wrong.method+" "+wrong.path, got, wrong.status)
	}
}

// TestWhoReadsNothing: a client that doesn't read a large answer delays nobody else.
func TestWhoReadsNothing(t *testing.T) {
	large := sample(Volume{VolumeID: "v1", Reason: strings.Repeat("x", 16<<20), Since: noon, Objects: []VolumeObject{}})
	made := make(chan struct{}, 2)
	address := serve(t, answering(func() *Report {
		made <- struct{}{}
		if len(made) == 1 {
			return large
		}
		return sample()
	}))
	conn := must.Get((&net.Dialer{}).DialContext(t.Context(), "tcp", address))(t)
	defer conn.Close()
	must.Get(conn.Write([]byte("GET " + Path + " HTTP/1.1\r\nHost: test\r\n\r\n")))(t)
	must.Get(io.ReadFull(conn, make([]byte, 1)))(t) // the answer is being written
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := fetch(ctx, address); err != nil {
		t.Errorf("while another one reads nothing: %v", err)
	}
}

// TestManyAnswers: if there are too many at the same time, another one is refused, and answered once there is room.
func TestManyAnswers(t *testing.T) {
	goOn := make(chan struct{})
	address := serve(t, answering(func() *Report {
		<-goOn
		return sample()
	}))
	answers := make(chan int, maxAnswers+1)
	var asking sync.WaitGroup
	for range maxAnswers + 1 {
		asking.Go(func() {
			status, _, _ := do(t, http.MethodGet, "http://"+address+Path)
			answers <- status
		})
	}
	expect.Equal(t, "the first answer", <-answers, http.StatusServiceUnavailable)
	close(goOn)
	asking.Wait()
	for range maxAnswers {
		expect.Equal(t, "another answer", <-answers, http.StatusOK)
	}
	status, _, _ := do(t, http.MethodGet, "http://"+address+Path)
	expect.Equal(t, "a later answer", status, http.StatusOK)
}

// TestOneAnswerAtATime: a request that comes meanwhile waits, and is dropped if it gives up.
func TestOneAnswerAtATime(t *testing.T) {
	began, goOn := make(chan struct{}, 3), make(chan struct{})
	address := serve(t, answering(func() *Report {
		began <- struct{}{}
		<-goOn
		return sample()
	}))
	answers := make(chan error, 2)
	ask := func(ctx context.Context) {
		_, err := fetch(ctx, address)
		answers <- err
	}
	go ask(t.Context())
	<-began
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	ask(ctx)
	if err := <-answers; !errors.Is(err, context.DeadlineExceeded) || len(began) > 0 {
		t.Errorf("a second one got %v, and %d reports began", err, len(began))
	}
	go ask(t.Context())
	close(goOn)
	for range 2 {
		must.Do(t, <-answers)
	}
}

// TestQuery: the plugin learns of which objects a client wants to know.
func TestQuery(t *testing.T) {
	var asked [][]ObjectKey
	address := serve(t, Handler(func(objects []ObjectKey) *Stream {
		asked = append(asked, objects)
		return stream(sample())
	}))
	transport := &http.Transport{DisableKeepAlives: true}
	few := []ObjectKey{{"Secret", "shop", "db"}, {"ConfigMap", "shop", "a.b&object=c"}}
	many := slices.Repeat([]ObjectKey{{"Secret", "shop", strings.Repeat("x", 253)}}, 1000)
	for _, objects := range [][]ObjectKey{few, nil, many} {
		must.Get(Fetch(t.Context(), transport, address, objects...))(t)
	}
	if len(asked) != 3 || !slices.Equal(asked[0], few) || asked[1] != nil || asked[2] != nil {
		t.Errorf("got %.1000v", asked)
	}
	for query, want := range map[string]int{
		"object=Secret/shop/db&object=ConfigMap/shop/app&later=1": http.StatusOK,
		"object=":                             http.StatusBadRequest,
		"object=db":                           http.StatusBadRequest,
		"object=%zz":                          http.StatusBadRequest,
		"object=Secret/shop/":                 http.StatusBadRequest,
		"object=Secret//db":                   http.StatusBadRequest,
		"object=secret/shop/db":               http.StatusBadRequest,
		"object=Secret/shop/db/x":             http.StatusBadRequest,
		"object=Secret/shop/db&object=%1b/b/": http.StatusBadRequest,
	} {
		code, _, body := do(t, http.MethodGet, "http://"+address+Path+"?"+query)
		if code != want || code != http.StatusOK && (!strings.Contains(body, "object: Invalid value: ") && !strings.Contains(body, "parse the query: ") || strings.Contains(body, "\x1b")) {
			t.Errorf("%s: %d, %s", query, code, body)
		}
	}
}

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
	expect.Equal(t, "printable", Printable(hostile), want)
	expect.Equal(t, "what can be printed", Printable(want), want)
	report := sample(Volume{Name: hostile, Condition: hostile, Reason: hostile, Pod: Pod{Name: hostile}, Objects: []VolumeObject{{Object: &Object{Name: hostile}, Shown: &Version{ResourceVersion: hostile}}}})
	report.Node, report.MissingRights = hostile, []string{hostile}
	for _, output := range []string{OutputWide, OutputTable, OutputJSON, OutputYAML} {
		var out bytes.Buffer
		write := func() error { return Encode(&out, output, report) }
		if output == OutputWide || output == OutputTable {
			write = func() error { return Table{Wide: output == OutputWide}.Write(&out, &Counts{}, report) }
		}
		must.Do(t, write())
		if i := strings.IndexFunc(out.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%s has %.10q", output, out.String()[i:])
		}
		if output == OutputJSON {
			expect.Equal(t, "what is read", must.Get(Read(&out))(t), report)
		}
	}
}

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

// TestStream: what is written piece by piece is read as the whole report, and nothing shorter is a report.
func TestStream(t *testing.T) {
	want := sample(samples()...)
	want.Others = []PodVolumes{{PodUID: "uid-3", Volumes: []string{"a", "b"}}}
	var body bytes.Buffer
	must.Do(t, stream(want).Write(&body))
	expect.Equal(t, "what is read", must.Get(Read(bytes.NewReader(body.Bytes())))(t), want)
	text := strings.TrimSuffix(body.String(), "\n")
	body.Reset()
	if must.Do(t, stream(sample()).Write(&body)); strings.Contains(body.String(), `"others"`) {
		t.Errorf("others of a whole report: %s", &body)
	}
	for n := range len(text) {
		if _, err := Read(strings.NewReader(text[:n])); !errors.Is(err, ErrFormat) {
			t.Fatalf("the first %d of %d bytes are a report: %v", n, len(text), err)
		}
	}
	for n := range len(text) {
		if err := stream(want).Write(&full{left: n}); !errors.Is(err, errFault) {
			t.Fatalf("a fault after %d bytes: %v", n, err)
		}
	}
}

// TestStreamEndsWithItsWriter: for a client that has gone, no more volumes are created.
func TestStreamEndsWithItsWriter(t *testing.T) {
	s, created := stream(sample()), 0
	s.Volumes = func(yield func(*Volume) bool) {
		for created < 100 {
			created++
			if !yield(&Volume{Reason: strings.Repeat("x", 1<<13)}) {
				return
			}
		}
	}
	if err := s.Write(&full{}); !errors.Is(err, errFault) || created > 1 {
		t.Errorf("%d volumes were created: %v", created, err)
	}
}

// full is a writer that fails after some bytes.
type full struct{ left int }

func (f *full) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, errFault
	}
	return len(p), nil
}

// TestAnswerThatEndsEarly: a client gets an error, and not a part of the report, if the plugin can't write all of it.
func TestAnswerThatEndsEarly(t *testing.T) {
	report := sample(samples()...)
	report.Volumes[4].Since = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) // JSON has no such year
	report.Volumes[0].Reason = strings.Repeat("x", 1<<16)
	address := serve(t, answering(func() *Report { return report }))
	if report, err := fetch(t.Context(), address); !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrFormat) {
		t.Errorf("got %v, %v", report, err)
	}
}

// TestHostileIndices: an index that means nothing is refused.
func TestHostileIndices(t *testing.T) {
	for named, want := range map[string]string{
		`{"object": 0, "shown": 0}`:                            "",
		`{"object": 1}`:                                        "",
		`{"object": 2}`:                                        "volumes[1].objects[0].object: Invalid value: 2: there are 2 objects",
		`{"object": -1}`:                                       "Invalid value: -1",
		`{"object": 0, "shown": 1}`:                            "volumes[1].objects[0].shown: Invalid value: 1: the object has 1 versions",
		`{"object": 0, "shown": -1}`:                           "Invalid value: -1",
		`{"object": 1, "shown": 0}`:                            "the object has 0 versions",
		`{"object": 99999999999999999999}`:                     "cannot unmarshal number",
		`{"object": "0"}`:                                      "cannot unmarshal string",
		`{"object": 0}]}], "objects": [null], "x": [{"y": [{}`: "objects[0]: Required value",
	} {
		body := head + `, "objects": [{"versions": [{"uid": "u"}]}, {}], "volumes": [{"objects": []}, {"objects": [` + named + `]}]}`
		_, err := Read(strings.NewReader(body))
		if (err == nil) != (want == "") || err != nil && (!errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", named, err, want)
		}
	}
}

// TestNumber: after volumes were removed, only what the others name is left.
func TestNumber(t *testing.T) {
	report := sample(samples()...)
	if len(report.Objects) != 4 {
		t.Fatalf("got %d objects", len(report.Objects))
	}
	report.Volumes = slices.Delete(report.Volumes, 0, 2)
	report.Number()
	var got []string
	for _, v := range report.Volumes {
		for _, o := range v.Objects {
			got = append(got, fmt.Sprint(report.Objects[o.Index].Name, " ", o.ShownIndex != nil, " ", len(o.Versions)))
		}
	}
	if want := []string{"ca true 1", "app true 1", "late false 0"}; !slices.Equal(got, want) || len(report.Objects) != 3 {
		t.Errorf("got %q of %d objects, want %q", got, len(report.Objects), want)
	}
}
