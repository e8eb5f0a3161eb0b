package simulation

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/history"
	"github.com/refvol/refvol/internal/sandbox"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

// usual are the seeds of a run without REFVOL_SEED and REFVOL_SIM_SEEDS. They are few, and each wanted thing occurs in at least five of
// them, as a run of each seed from 1 to 120 showed.
var usual = []uint64{3, 4, 14, 31, 48, 49, 50, 61, 81, 86, 87, 88, 91, 92, 93, 95, 100, 103, 106, 107, 110, 112, 118, 120}

// wanted are the things that a run of the usual seeds must have met. Some of them are in one of 20 seeds.
func wanted() []string {
	all := []string{
		"published", "republished", "unpublished", "terminated", "a lost mount", "a missed moment", "a broken mount", "a receipt", "a stall before a file is ignored",
		"condition Held", "condition Spreading", "condition Split", "a kill in the middle of a pair", "condition Pinned", "condition Current", "condition VolumeUpdateFailed", "condition RefForbidden", "condition RefDeleted",
		"401", "403", "410", "429", "500", "503", "silence", "connection lost", "too large", "a stale state", "a cut stream", "half a frame", "a bookmark",
		"a get", "a list", "a pod is read", "an event", "a handshake", "an object that can't be read", "a review while roles are unknown", "a pod may not read",
		"a token that is not accepted", "killed during a publish", "killed during an unpublish", "killed at: any time", "killed at: the start of a withdrawal", "killed at: the end of a withdrawal", "a look during a write",
		"a look before the second is over", "quiet", "prompt", "a start while the API server lags", "an absent canary", "a shown canary", "a change while the plugin is away", "publish: PermissionDenied", "publish: NotFound", "publish: OutOfRange", "publish: Unavailable",
	}
	for _, place := range places {
		if place != "" {
			all = append(all, "killed at: "+place)
		}
	}
	return all
}

// TestSimulation runs the node with each seed. REFVOL_SEED=7 runs one, REFVOL_SIM_SEEDS=1-100 many. REFVOL_SIM_STEPS shortens each run.
func TestSimulation(t *testing.T) {
	seeds, err := seedsOf(cmp.Or(os.Getenv("REFVOL_SEED"), os.Getenv("REFVOL_SIM_SEEDS")))
	if err != nil {
		t.Fatalf("the seeds: %v", err)
	}
	steps, err := strconv.Atoi(cmp.Or(os.Getenv("REFVOL_SIM_STEPS"), "60"))
	if err != nil {
		t.Fatalf("the steps: %v", err)
	}
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	all := &sum{met: map[string]int{}}
	t.Run("all", func(t *testing.T) { // returns when all of its parallel tests have ended
		for _, seed := range seeds {
			t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { simulate(t, seed, steps, all) })
			})
		}
	})
	for _, name := range slices.Sorted(maps.Keys(all.met)) {
		t.Logf("%7d %s", all.met[name], name)
	}
	if slices.Equal(seeds, usual) {
		for _, what := range wanted() {
			if all.met[what] == 0 {
				t.Errorf("never met: %s", what)
			}
		}
	}
}

// seedsOf returns the seeds that a text names, such as 7 or 1-100, and the usual ones for none.
func seedsOf(text string) (seeds []uint64, err error) {
	if text == "" {
		return usual, nil
	}
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 64)
	to, otherErr := strconv.ParseUint(last, 10, 64)
	if from > to {
		return nil, fmt.Errorf("%s: the first is beyond the last", text)
	}
	for seed := from; seed <= to; seed++ {
		seeds = append(seeds, seed)
	}
	return seeds, errors.Join(err, otherErr)
}

// sum is what all runs met. It is safe for concurrent use.
type sum struct {
	mu  sync.Mutex
	met map[string]int
}

func simulate(t *testing.T, seed uint64, steps int, all *sum) {
	w := newWorld(t, seed)
	if w.mode.overWire {
		w.server.listen()
	}
	for _, name := range w.names() {
		w.put(name)
		for _, account := range []string{"a", "b"} {
			if account == "a" || name != "x1" {
				w.server.grant(account, name, true)
			}
		}
	}
	var supervisor sync.WaitGroup
	supervisor.Go(w.supervise)
	for _, v := range w.volumes {
		v.isWanted.Store(w.roll(v.name+" first", 2) == 0)
		w.kubelets.Go(v.live)
	}
	for number := range 3 {
		for range steps {
			w.step()
			after(time.Duration(w.roll("pause", 3)) * time.Duration(w.roll("pause length", 5000)) * time.Millisecond)
			w.lookAll(false)
		}
		w.rest(number)
	}
	w.finish()
	close(w.end)
	supervisor.Wait()
	w.server.close()
	after(10 * time.Minute) // what client-go's events still wait for
	for _, line := range w.logs.With("panicked") {
		t.Error(line)
	}
	w.judge(all)
}

func (w *world) judge(all *sum) {
	violations := w.Check()
	all.mu.Lock()
	defer all.mu.Unlock()
	for what, n := range w.AllMet() {
		all.met[what] += n
	}
	for _, v := range violations[:min(len(violations), 10)] {
		w.Errorf("seed %d (%+v): %s", w.seed, w.mode, v)
	}
	if w.Failed() || os.Getenv("REFVOL_SIM_TRACE") != "" {
		w.writeTrace()
	}
}

// writeTrace writes the history and the log to files, for who looks for the cause.
func (w *world) writeTrace() {
	dir := cmp.Or(os.Getenv("REFVOL_SIM_TRACE"), os.TempDir())
	var text strings.Builder
	for _, e := range w.Events() {
		if e.Kind != history.Known {
			fmt.Fprintln(&text, e.String())
		}
	}
	path := fmt.Sprintf("%s/simulation-%d", dir, w.seed)
	must(os.WriteFile(path+".history", []byte(text.String()), 0o600))
	must(os.WriteFile(path+".log", []byte(w.logs.String()), 0o600))
	w.Logf("the history and the log are in %s.*", path)
}

// listen serves the API over HTTP/2 in memory.
func (s *apiServer) listen() {
	s.listener = bufconn.Listen(1 << 16)
	log := klog.NewStandardLogger("INFO")
	handler := &httputil.ReverseProxy{
		Transport: s, Rewrite: func(*httputil.ProxyRequest) {}, FlushInterval: -1, ErrorLog: log,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	s.http = &httptest.Server{Listener: s.listener, EnableHTTP2: true, Config: &http.Server{
		Handler: handler, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 100}, ErrorLog: log, ReadHeaderTimeout: time.Minute,
	}}
	s.http.StartTLS()
}

func (s *apiServer) close() {
	if s.http != nil {
		s.http.CloseClientConnections()
		s.http.Close()
	}
}
