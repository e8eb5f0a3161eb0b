package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

func runCommand(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	err = run(t.Context(), newRootCommand(), args, &out, &errOut)
	return out.String(), errOut.String(), err
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// What the commands do is tested with an API server, in e2e/suites/fleet.
func TestFlags(t *testing.T) {
	t.Setenv("KUBECONFIG", "/does/not/exist")
	t.Setenv("HOME", t.TempDir())
	const formats = "--output: unable to match a printer suitable for the output format"
	const nowhere = "--server=http://127.0.0.1:1"
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"status", "-o", "text"}, formats + ` "text"`},
		{[]string{"status", "-o", "custom-columns=A"}, "--output: unexpected custom-columns spec: A, expected <header>:<json-path-expr>"},
		{[]string{"status", "-o", "custom-columns=A:{.b"}, "--output: unexpected path string, expected a "},
		{[]string{"status", "-o", "custom-columns-file=/does/not/exist"}, "--output: error reading template /does/not/exist"},
		{[]string{"status", "-o", "go-template={{"}, "--output: error parsing template {{"},
		{[]string{"status", "-o", "json", "--sort-by=.bytes"}, "--sort-by: -o json prints no rows"},
		{[]string{"check", "-f", "-", "-o", "name"}, formats + ` "name"`},
		{[]string{"status", "--plugin-namespace="}, "--plugin-namespace must not be empty"},
		{[]string{"status", "--driver-name="}, "--driver-name must not be empty"},
		{[]string{"status", "--status-port=0"}, "--status-port must not be 0"},
		{[]string{"status", "--plugin-timeout=0s"}, "--plugin-timeout: 0s is not positive"},
		{[]string{"status", "--plugin-selector=a b"}, "--plugin-selector: "},
		{[]string{"status", "--selector=a=b"}, "unknown flag: --selector"},
		{[]string{"status", "-v=8"}, "-v: 8 would log values of Secrets: must be at most 7"},
		{[]string{"status", "argument"}, `unknown command "argument" for "kubectl refvol status"`},
		{[]string{"status", "--kubeconfig=/nor/this"}, "configure the client of the API server: stat /nor/this: no such file or directory"},
		{[]string{"status", "--context=none"}, `configure the client of the API server: context "none" does not exist`},
		{[]string{"status", "--request-timeout=soon", nowhere}, `invalid argument "soon" for "--request-timeout" flag: `},
		{[]string{"converged"}, "requires at least 1 arg(s), only received 0"},
		{[]string{"converged", "secret/db", "-o", "wide"}, formats + ` "wide"`},
		{[]string{"converged", "secret/db", "--timeout=0", nowhere}, "get the metadata of secret/db in namespace default: "},
		{[]string{"rollout", "pause", "secret/db", "--timeout=0", nowhere}, "get the metadata of secret/db in namespace default: "},
		{[]string{"converged", "secret/db", "--revision=a b"}, "--revision: Invalid value: a text of 3 bytes: must be 1 to 128 letters, digits and . _ - / : @ +"},
		{[]string{"converged", "secret/a/b", nowhere}, "arguments in resource/name form may not have more than one slash"},
		{[]string{"converged", "secret/db", "-l", "a=b", nowhere}, "selectors cannot be used when objects are named: -l takes TYPE, or TYPE,TYPE"},
		{[]string{"converged", "deployments", "-l", "a=b", nowhere}, `"deployments": volumes show secrets and configmaps only`},
		{[]string{"converged", "pod/db", nowhere}, `"pod": volumes show secrets and configmaps only`},
		{[]string{"converged", "Secret/db", "-n", "ns", "--timeout=250ms", nowhere}, "--timeout 250ms has passed: get the metadata of secret/db in namespace ns: "},
		{[]string{"converged", "cm/app", "-n", "ns", "--timeout=250ms", nowhere}, "--timeout 250ms has passed: get the metadata of configmap/app in namespace ns: "},
	} {
		out, errOut, err := runCommand(t, test.args...)
		if err == nil || !strings.HasPrefix(err.Error(), test.want) || out != "" || errOut != "" && !strings.HasPrefix(errOut, "Warning: get the metadata") {
			t.Errorf("%q: %v, want %s; wrote %q, %q", test.args, err, test.want, out, errOut)
		}
		if status := exitStatus(err); status != unknown {
			t.Errorf("%q: status %d", test.args, status)
		}
	}
	if out, _, err := runCommand(t, "version"); err != nil || !strings.HasPrefix(out, "kubectl-refvol v") {
		t.Errorf("version: %q, %v", out, err)
	}
}

var (
	errFault     = errors.New("fault")
	errForbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errFault)
)

// TestExitStatus distinguishes a negative answer from none.
func TestExitStatus(t *testing.T) {
	object := fleet.Object{Kind: "Secret", Namespace: "ns", Name: "db"}
	missing := &fleet.Result{Object: object}
	nobody := &fleet.Result{Object: object, Current: &status.Version{}, None: true}
	yes := &fleet.Result{Object: object, Current: &status.Version{}, Converged: true}
	for name, test := range map[string]struct {
		results []*fleet.Result
		want    int
	}{
		"yes": {[]*fleet.Result{yes, yes}, 0}, "no": {[]*fleet.Result{yes, missing}, no}, "none": {[]*fleet.Result{yes, nobody}, none},
		"both": {[]*fleet.Result{nobody, missing}, no},
	} {
		err := outcome(test.results)
		if got := exitStatus(err); got != test.want || exitStatus(errors.Join(nil, err)) != test.want {
			t.Errorf("%s: %d, want %d: %v", name, got, test.want, err)
		}
	}
	for err, want := range map[error]int{errFault: unknown, fmt.Errorf("wrapped: %w", (&status.Counts{Abnormal: 1}).Err()): no, nil: 0} {
		if got := exitStatus(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

// script is a cluster with one volume, in which the rounds find the object's versions one after the other.
type script struct {
	// object has the version for each request for the object, and shown the version that the volume shows in each round. The last one is
	// repeated. "-" means none. Without shown there is no volume.
	object, shown string
	// revisions are those of the object for each request, if wanted is not "".
	revisions []volume.Revision
	wanted    volume.Revision
	// slow is how long a round takes. fails has the rounds that fail, from 1.
	slow      time.Duration
	fails     map[int]error
	allowNone bool
	// answers is how many requests for the object's version the API server answers. 0 means all.
	answers  int
	printed  []string
	progress []string
	rounds   int
}

func next(versions *string) *status.Version {
	v, others, isMore := strings.Cut(*versions, " ")
	if isMore {
		*versions = others
	}
	if v == "-" {
		return nil
	}
	return &status.Version{UID: "u", ResourceVersion: v}
}

func (s *script) waiter(watch bool) *waiter {
	object := fleet.Object{Kind: "Secret", Namespace: "ns", Name: "db"}
	return &waiter{
		watch: watch, allowNone: s.allowNone, revision: s.wanted,
		find: func(context.Context) ([]fleet.Object, error) { return []fleet.Object{object}, nil },
		version: func(ctx context.Context, _ fleet.Object) (objectVersion, error) {
			if s.answers--; s.answers == 0 {
				s.object = ""
			}
			if s.object == "" {
				<-ctx.Done()
				return objectVersion{}, ctx.Err()
			}
			now := objectVersion{Version: next(&s.object)}
			if s.wanted != "" {
				now.revision = s.revisions[0]
				s.revisions = s.revisions[min(1, len(s.revisions)-1):]
			}
			return now, ctx.Err()
		},
		survey: func(ctx context.Context, _ ...fleet.Object) (*fleet.Survey, error) {
			s.rounds++
			if err := s.fails[s.rounds]; err != nil {
				return nil, err
			}
			pause(ctx, s.slow)
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, ctx.Err()
			}
			if s.shown == "" {
				return &fleet.Survey{Nodes: []fleet.Node{{Name: "n", Report: &status.Report{}}}}, nil
			}
			volume := status.Volume{Objects: []status.VolumeObject{{Object: &status.Object{Kind: "Secret", Namespace: "ns", Name: "db"}, Shown: next(&s.shown)}}}
			return &fleet.Survey{Nodes: []fleet.Node{{Name: "n", Report: &status.Report{Volumes: []status.Volume{volume}}}}}, nil
		},
		warn:     func(err error) { s.printed = append(s.printed, "warning: "+err.Error()) },
		progress: func(text string) { s.progress = append(s.progress, text) },
		write: func(results []*fleet.Result) error {
			v, line := results[0], "deleted"
			switch {
			case v.Converged:
				line = "yes " + v.Current.ResourceVersion
			case v.None:
				line = "none " + v.Current.ResourceVersion
			case v.Current != nil:
				line = "no " + v.Current.ResourceVersion
			}
			s.printed = append(s.printed, line)
			return nil
		},
	}
}

func TestWait(t *testing.T) {
	const lags, gone = "secret/db in namespace ns: not everywhere: volumes and nodes that lag: 1", "secret/db in namespace ns does not exist"
	const interruptedAfter = 5500 * time.Millisecond // of those that have no limit
	type wait struct {
		script  script
		timeout time.Duration
		watch   bool
		// printed are the results, want is the error, took is the time, and rounds is how often the plugins were asked.
		printed, want string
		took          time.Duration
		rounds        int
	}
	row := func(s script, timeout time.Duration, watch bool, printed, want string, took time.Duration, rounds int) wait {
		return wait{s, timeout, watch, printed, want, took, rounds}
	}
	for name, test := range map[string]wait{
		"at once":                  {script{object: "1", shown: "1"}, time.Minute, false, "yes 1", "", 0, 1},
		"after two rounds":         {script{object: "2", shown: "1 1 2"}, time.Minute, false, "yes 2", "", 2 * time.Second, 3},
		"a change during the wait": {script{object: "2 2 2 3", shown: "1 1 2 3"}, time.Minute, false, "yes 3", "", 2 * time.Second, 4},
		"a change that has arrived is asked for again at once": {script{object: "1 2", shown: "2"}, time.Minute, false, "yes 2", "", 0, 2},
		"at the wanted revision": row(script{object: "1 1 1 2", shown: "1 1 2", revisions: []volume.Revision{"r1", "r1", "r1", "r2"}, wanted: "r2"},
			time.Minute, false, "yes 2", "", 2*time.Second, 4),
		"at another revision": row(script{object: "1", shown: "1", revisions: []volume.Revision{"r1"}, wanted: "r2"},
			2500*time.Millisecond, false, "no 1", `secret/db in namespace ns has the revision "r1", not "r2"`, 2500*time.Millisecond, 3),
		"never":                        {script{object: "2", shown: "1"}, 4500 * time.Millisecond, false, "no 2", lags, 4500 * time.Millisecond, 5},
		"the first round is cut short": {script{object: "2", shown: "1", slow: time.Hour}, 10 * time.Second, false, "no 2", lags, 10 * time.Second, 1},
		"the API server falls silent in the first round": row(script{object: "1", shown: "1", answers: 2},
			10*time.Second, false, "", "--timeout 10s has passed", 10*time.Second, 1),
		"the API server falls silent in the first round, and a volume lags": row(script{object: "2", shown: "1", answers: 2},
			10*time.Second, false, "no 2", lags, 10*time.Second, 1),
		"one look, as kubectl wait":   {script{object: "1", shown: "1"}, 0, false, "yes 1", "", 0, 1},
		"one look, and a volume lags": {script{object: "2", shown: "1 2"}, 0, false, "no 2", lags, 0, 1},
		"one look that takes long":    {script{object: "1", shown: "1", slow: 8 * time.Second}, 0, false, "yes 1", "", 8 * time.Second, 1},
		"one look that fails":         {script{object: "1", shown: "1", fails: map[int]error{1: errFault}}, 0, false, "", "fault", 0, 1},
		"one look, and watch":         {script{object: "1", shown: "1"}, 0, true, "yes 1", "", 0, 1},
		"a week, as kubectl wait":     {script{object: "2", shown: "1", slow: 30 * time.Hour}, -time.Second, false, "no 2", lags, 7 * 24 * time.Hour, 3},
		"never there":                 {script{object: "-", shown: "1"}, time.Minute, false, "deleted", gone, 0, 0},
		"deleted in the wait":         {script{object: "2 2 -", shown: "1"}, time.Minute, false, "deleted", gone, time.Second, 2},
		"no volume of an object that is created meanwhile": row(script{object: "1 2"},
			time.Minute, false, "none 2",
			"no refvol volume shows secret/db in namespace ns: is it the right name and namespace? --allow-none accepts this", 0, 2),
		"the first rounds fail": row(script{object: "1", shown: "1", fails: map[int]error{1: errFault, 2: errFault}},
			time.Minute, false, "warning: fault, yes 1", "", 3*time.Second, 3),
		"no round succeeds": row(script{object: "1", shown: "1", fails: map[int]error{1: errFault, 2: errFault, 3: errFault}},
			5*time.Second, false, "warning: fault", "--timeout 5s has passed: fault", 5*time.Second, 3),
		"no right at first":     {script{object: "1", shown: "1", fails: map[int]error{1: errForbidden}}, time.Minute, false, "", errForbidden.Error(), 0, 1},
		"no plugin for a while": {script{object: "2", shown: "1 2", fails: map[int]error{2: errNoPlugin}}, time.Minute, false, "warning: " + errNoPlugin.Error() + ", yes 2", "", 2 * time.Second, 3},
		"an API server that is replaced": row(script{object: "2", shown: "1 2", fails: map[int]error{2: errFault, 3: errFault, 4: errFault}},
			time.Minute, false, "warning: fault, yes 2", "", 8*time.Second, 5),
		"a right is taken away": {script{object: "2", shown: "1", fails: map[int]error{2: errForbidden}}, time.Minute, false, "", errForbidden.Error(), time.Second, 2},
		"watch": row(script{object: "1 1 1 2 2 -", shown: "1 1 1 2"},
			8500*time.Millisecond, true, "yes 1, no 2, yes 2, deleted", gone, 8500*time.Millisecond, 5),
		"interrupted":                    {script{object: "1", shown: "1"}, noLimit, true, "yes 1", "", interruptedAfter, 6},
		"interrupted, and a volume lags": {script{object: "2", shown: "1"}, noLimit, true, "no 2", lags, interruptedAfter, 6},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				if test.timeout == noLimit {
					time.AfterFunc(interruptedAfter, interrupt)
				}
				err := test.script.waiter(test.watch).wait(ctx, test.timeout)
				if printed := strings.Join(test.script.printed, ", "); message(err) != test.want || printed != test.printed {
					t.Errorf("printed %q, error %v; want %q, %q", printed, err, test.printed, test.want)
				}
				if took := time.Since(began); took != test.took || test.script.rounds != test.rounds {
					t.Errorf("took %s, %d rounds; want %s, %d", took, test.script.rounds, test.took, test.rounds)
				}
			})
		})
	}
}

// TestProgress: a wait is reported once, and again only after a change.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{object: "2 2 2 2 3", shown: "1 1 1 1 3"}
		must.Do(t, s.waiter(false).wait(t.Context(), time.Minute))
		want := []string{
			"Waiting for secret/db in namespace ns: version 2 is in 0 of 1 volumes: - Outdated",
			"Waiting for secret/db in namespace ns: version 3 is in 0 of 1 volumes: - Outdated",
		}
		if !slices.Equal(s.progress, want) {
			t.Errorf("got %q, want %q", s.progress, want)
		}
	})
}

// TestNewObjects: an object that gets the labels while converged waits must be everywhere too.
func TestNewObjects(t *testing.T) {
	for again, want := range map[bool]string{true: "db cache", false: "db"} {
		synctest.Test(t, func(t *testing.T) {
			s := script{object: "2", shown: "1 1 2"}
			w := s.waiter(false)
			finds, printed := 0, []string{}
			w.findAgain, w.allowNone = again, true
			w.find = func(context.Context) ([]fleet.Object, error) {
				objects := []fleet.Object{{Kind: "Secret", Namespace: "ns", Name: "db"}}
				if finds++; finds > 1 {
					objects = append(objects, fleet.Object{Kind: "Secret", Namespace: "ns", Name: "cache"})
				}
				return objects, nil
			}
			w.write = func(results []*fleet.Result) error {
				for _, v := range results {
					printed = append(printed, v.Object.Name)
				}
				return nil
			}
			if err := w.wait(t.Context(), time.Minute); err != nil || strings.Join(printed, " ") != want {
				t.Errorf("again %v: got %q, %v, want %s", again, printed, err, want)
			}
		})
	}
}

// TestWaiterOfFlags: with -l the command looks again which objects have the labels. A pod that has waited for a while on a node without the plugin
// is no laggard. The other flags arrive, too.
func TestWaiterOfFlags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := metav1.Now()
		waits := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "w"},
			Spec:       corev1.PodSpec{NodeName: "bare", Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}}}}},
			Status: corev1.PodStatus{
				Phase: corev1.PodPending, StartTime: &start,
				Conditions:        []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse, LastTransitionTime: start}},
				ContainerStatuses: []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}},
			},
		}
		plugin := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "refvol-system", Name: "plugin", Labels: map[string]string{"app": "plugin"}}, Spec: corev1.PodSpec{NodeName: "other"}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
		opts := &convergedOptions{cluster: &clusterOptions{namespace: "refvol-system", selector: "app=plugin", driver: driverName}, selector: "app=web", opened: true, revision: "r", allowNone: true, watch: true}
		c := &cluster{opts: opts.cluster, timeout: time.Second, client: fake.NewClientset(waits, plugin, node, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "bare"}}), metadata: fakeObjects(t, annotated("app", nil))}
		w := opts.waiter(c, []string{"configmaps"}, io.Discard, io.Discard)
		if !w.findAgain || !w.opened || w.revision != "r" || !w.allowNone || !w.watch {
			t.Errorf("got %+v", w)
		}
		w.find = func(context.Context) ([]fleet.Object, error) {
			return []fleet.Object{{Kind: "ConfigMap", Namespace: "shop", Name: "app"}}, nil
		}
		must.Do(t, w.round(t.Context()))
		if v := w.last[0]; len(v.WithoutPlugin) != 1 || len(v.Laggards) != 1 || v.Laggards[0].Node != "other" {
			t.Errorf("without the plugin: %+v, laggards: %+v", v.WithoutPlugin, v.Laggards)
		}
	})
}
