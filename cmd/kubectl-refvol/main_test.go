package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/command"
	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// What the commands do is tested on an API server, in e2e/suites/fleet.
func TestFlags(t *testing.T) {
	t.Setenv("KUBECONFIG", "/does/not/exist")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"status", "-o", "text"}, `--output: Unsupported value: "text": must be table, wide, json or yaml`},
		{[]string{"status", "--plugin-namespace="}, "--plugin-namespace must not be empty"},
		{[]string{"status", "--driver-name="}, "--driver-name must not be empty"},
		{[]string{"status", "--status-port=0"}, "--status-port must not be 0"},
		{[]string{"status", "--plugin-timeout=0s"}, "--plugin-timeout: 0s is not positive"},
		{[]string{"status", "--selector=a b"}, "--selector: "},
		{[]string{"status", "-n", "shop"}, "unknown shorthand flag: 'n' in -n"},
		{[]string{"status", "--namespace=shop"}, "unknown flag: --namespace"},
		{[]string{"status", "argument"}, `unknown command "argument" for "kubectl refvol status"`},
		{[]string{"status"}, "configure the client of the API server: "},
		{[]string{"status", "--kubeconfig=/nor/this"}, "configure the client of the API server: stat /nor/this: no such file or directory"},
		{[]string{"converged"}, "accepts between 1 and 2 arg(s), received 0"},
		{[]string{"converged", "secret/db", "-o", "wide"}, `--output: Unsupported value: "wide": must be table, json or yaml`},
		{[]string{"converged", "secret/db", "--timeout=-1s"}, "--timeout: -1s is negative"},
		{[]string{"converged", "pod/db", "--server=http://127.0.0.1:1"}, `"pod/db" is neither secret/NAME nor configmap/NAME`},
		{[]string{"converged", "secret", "--server=http://127.0.0.1:1"}, `"secret" is neither secret/NAME nor configmap/NAME`},
		{[]string{"converged", "secret", "a/b", "--server=http://127.0.0.1:1"}, `"secret/a/b" is neither secret/NAME nor configmap/NAME`},
		{[]string{"converged", "pod", "db", "--server=http://127.0.0.1:1"}, `"pod/db" is neither secret/NAME nor configmap/NAME`},
		{[]string{"converged", "secret", "db", "-n", "ns", "--server=http://127.0.0.1:1"}, "get the metadata of secret/db in namespace ns: "},
		{[]string{"converged", "secret/a/b", "--server=http://127.0.0.1:1"}, `"secret/a/b" is neither secret/NAME nor configmap/NAME`},
	} {
		var out bytes.Buffer
		err := command.Run(t.Context(), newRootCommand(), test.args, &out, &out)
		if err == nil || !strings.HasPrefix(err.Error(), test.want) || out.Len() > 0 {
			t.Errorf("%q: %v, want %s; wrote %q", test.args, err, test.want, &out)
		}
	}
	var out bytes.Buffer
	if err := command.Run(t.Context(), newRootCommand(), []string{"version"}, &out, &out); err != nil || !strings.HasPrefix(out.String(), "kubectl-refvol v") {
		t.Errorf("version: %q, %v", &out, err)
	}
}

var (
	errFault     = errors.New("fault")
	errForbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errFault)
)

// TestExitStatus: no is told from not known.
func TestExitStatus(t *testing.T) {
	no := outcome(&fleet.Result{})
	none := outcome(&fleet.Result{Current: &status.Version{}, None: true})
	yes := outcome(&fleet.Result{Current: &status.Version{}, Converged: true})
	if yes != nil {
		t.Errorf("yes: %v", yes)
	}
	for err, want := range map[error]int{no: 1, errors.Join(nil, no): 1, errFault: 2, none: 3, errors.Join(nil, none): 3} {
		if got := command.ExitStatus(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

// script is a cluster with one volume, on which the rounds find one version of the object after the other.
type script struct {
	// object is what each request for the object finds, shown what each round's volume shows; the last
	// one stays. "" stands for none. Without shown there is no volume.
	object, shown []string
	// slow is how long a round takes, and fails are the rounds that fail, from 1 on.
	slow      time.Duration
	fails     map[int]error
	allowNone bool
	printed   []string
	rounds    int
}

func next(versions *[]string) *status.Version {
	v := (*versions)[0]
	if len(*versions) > 1 {
		*versions = (*versions)[1:]
	}
	if v == "" {
		return nil
	}
	return &status.Version{UID: "u", ResourceVersion: v}
}

func (s *script) waiter(watch bool) *waiter {
	object := fleet.Object{Kind: "Secret", Namespace: "ns", Name: "db"}
	return &waiter{
		object: object, watch: watch, allowNone: s.allowNone,
		version: func(ctx context.Context, _ fleet.Object) (*status.Version, error) {
			return next(&s.object), ctx.Err()
		},
		survey: func(ctx context.Context) (*fleet.Survey, error) {
			s.rounds++
			if err := s.fails[s.rounds]; err != nil {
				return nil, err
			}
			pause(ctx, s.slow)
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, ctx.Err()
			}
			if s.shown == nil {
				return &fleet.Survey{Nodes: []fleet.Node{{Name: "n", Report: &status.Report{}}}}, nil
			}
			volume := status.Volume{Objects: []status.Object{{Kind: "Secret", Namespace: "ns", Name: "db", Shown: next(&s.shown)}}}
			return &fleet.Survey{Nodes: []fleet.Node{{Name: "n", Report: &status.Report{Volumes: []status.Volume{volume}}}}}, nil
		},
		warn: func(err error) { s.printed = append(s.printed, "warning: "+err.Error()) },
		write: func(v *fleet.Result) error {
			line := "deleted"
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
	for name, test := range map[string]struct {
		script  script
		timeout time.Duration
		watch   bool
		// printed are the verdicts, want the error, took the time and rounds how often the plugins were asked.
		printed, want string
		took          time.Duration
		rounds        int
	}{
		"at once":                  {script{object: []string{"1"}, shown: []string{"1"}}, time.Minute, false, "yes 1", "", 0, 1},
		"after two rounds":         {script{object: []string{"2"}, shown: []string{"1", "1", "2"}}, time.Minute, false, "yes 2", "", 2 * time.Second, 3},
		"a change during the wait": {script{object: []string{"2", "2", "2", "3"}, shown: []string{"1", "1", "2", "3"}}, time.Minute, false, "yes 3", "", 2 * time.Second, 4},
		"a change that has arrived is asked for again at once": {script{object: []string{"1", "2"}, shown: []string{"2"}}, time.Minute, false, "yes 2", "", 0, 2},
		"an object that changes all the time":                  {script{object: []string{"1", "2", "3", "4", "5"}, shown: []string{"5"}}, time.Minute, false, "yes 5", "", 3 * time.Second, 5},
		"never": {
			script{object: []string{"2"}, shown: []string{"1"}},
			4500 * time.Millisecond, false, "no 2",
			"secret/db in namespace ns: not everywhere: volumes and nodes that lag: 1", 4500 * time.Millisecond, 5,
		},
		"a round that is cut short does not count": {
			script{object: []string{"2"}, shown: []string{"1", "2"}, slow: 4 * time.Second},
			10 * time.Second, false, "no 2",
			"secret/db in namespace ns: not everywhere: volumes and nodes that lag: 1", 10 * time.Second, 2,
		},
		"the first round is cut short": {
			script{object: []string{"2"}, shown: []string{"1"}, slow: time.Hour},
			10 * time.Second, false, "no 2",
			"secret/db in namespace ns: not everywhere: volumes and nodes that lag: 1", 10 * time.Second, 1,
		},
		"never there":         {script{object: []string{""}, shown: []string{"1"}}, time.Minute, false, "deleted", "secret/db in namespace ns does not exist", 0, 0},
		"deleted in the wait": {script{object: []string{"2", "2", ""}, shown: []string{"1"}}, time.Minute, false, "deleted", "secret/db in namespace ns does not exist", time.Second, 2},
		"no volume of an object that is created meanwhile": {
			script{object: []string{"1", "2"}},
			time.Minute, false, "none 2",
			"no refvol volume shows secret/db in namespace ns: is it the right name and namespace? --allow-none accepts this", 0, 2,
		},
		"watch, without a volume": {script{object: []string{"1", "1", "1", ""}}, time.Minute, true, "none 1, deleted", "secret/db in namespace ns does not exist", time.Minute, 3},
		"the first round fails":   {script{object: []string{"1"}, shown: []string{"1"}, fails: map[int]error{1: errFault}}, time.Minute, false, "", "fault", 0, 1},
		"an API server that is replaced": {
			script{object: []string{"2"}, shown: []string{"1", "2"}, fails: map[int]error{2: errFault, 3: errFault, 4: errFault}},
			time.Minute, false, "warning: fault, warning: fault, warning: fault, yes 2", "", 8 * time.Second, 5,
		},
		"a right is taken away": {script{object: []string{"2"}, shown: []string{"1"}, fails: map[int]error{2: errForbidden}}, time.Minute, false, "", errForbidden.Error(), time.Second, 2},
		"a request fails until the end": {
			script{object: []string{"2"}, shown: []string{"1"}, fails: map[int]error{2: errFault, 3: errFault, 4: errFault}},
			5 * time.Second, false, "warning: fault, warning: fault, warning: fault, no 2",
			"secret/db in namespace ns: not everywhere: volumes and nodes that lag: 1", 5 * time.Second, 4,
		},
		"watch": {
			script{object: []string{"1", "1", "1", "2", "2", ""}, shown: []string{"1", "1", "1", "2"}},
			8500 * time.Millisecond, true, "yes 1, no 2, yes 2, deleted",
			"secret/db in namespace ns does not exist", 8500 * time.Millisecond, 5,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				err := test.script.waiter(test.watch).wait(t.Context(), test.timeout)
				got := ""
				if err != nil {
					got = err.Error()
				}
				if printed := strings.Join(test.script.printed, ", "); got != test.want || printed != test.printed {
					t.Errorf("printed %q, error %q; want %q, %q", printed, got, test.printed, test.want)
				}
				if took := time.Since(began); took != test.took || test.script.rounds != test.rounds {
					t.Errorf("took %s, %d rounds; want %s, %d", took, test.script.rounds, test.took, test.rounds)
				}
			})
		})
	}
}

// TestInterrupted: a caller who has seen enough gets the last answer.
func TestInterrupted(t *testing.T) {
	for version, want := range map[string]bool{"1": true, "2": false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5500*time.Millisecond)
			defer cancel()
			interrupted, stop := context.WithCancel(t.Context())
			defer stop()
			context.AfterFunc(ctx, stop)
			s := &script{object: []string{version}, shown: []string{"1"}}
			if err := s.waiter(true).wait(interrupted, 0); (err == nil) != want || s.rounds != 6 || len(s.printed) != 1 {
				t.Errorf("version %s: %v after %d rounds, printed %q", version, err, s.rounds, s.printed)
			}
		})
	}
}
