package publisher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/podenv"
	"github.com/refvol/refvol/pkg/volume"
)

// fakePods is an API server that knows the environment of every container. Its methods
// are safe for concurrent use.
type fakePods struct {
	mu      sync.Mutex
	env     volume.Env
	leftOut []string
	err     error
	reads   []string
}

func (f *fakePods) Env(_ context.Context, pod volume.Pod, container string) (volume.Env, []string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads = append(f.reads, pod.Name+"/"+container)
	if f.err != nil {
		return volume.Env{}, nil, f.err
	}
	return f.env, f.leftOut, nil
}

func (f *fakePods) set(env volume.Env, err error, leftOut ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.env, f.err, f.leftOut = env, err, leftOut
}

// takeReads returns which containers were asked for, and forgets it.
func (f *fakePods) takeReads() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	reads := strings.Join(f.reads, " ")
	f.reads = nil
	return reads
}

var errNoPod = fmt.Errorf("read pod: %w", apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "pod-v1"))

// podEnv has a literal value, which is the pod's own business, and one of a Secret.
func podEnv() volume.Env {
	return volume.Env{
		Vars: []volume.EnvVar{
			{Name: "PLAIN", Value: canary},
			{Name: "PASSWORD", Key: &volume.EnvKey{Ref: secret("db"), Key: "password", Field: "spec.containers[0].env[1].valueFrom.secretKeyRef"}},
			{Name: "NODE", FieldRef: volume.PodNodeName},
			{Name: "NAME", FieldRef: volume.PodName},
		},
	}
}

const podEnvSources = "[{podEnv: {path: a.env, container: main}}, {podEnv: {path: b.env, container: side, format: shell}}]"

// The environment of a pod's own spec is read once by the publish, and again by the
// first reconcile after a restart, as its values are not recorded.
func TestPodEnv(t *testing.T) {
	inBubble(t, func(e *env) {
		files := func(password string) []string {
			return []string{
				"a.env", "NAME=pod-v1\nNODE=node-1\nPASSWORD=" + password + "\nPLAIN=" + canary + "\n",
				"b.env", "NAME='pod-v1'\nNODE='node-1'\nPASSWORD='" + password + "'\nPLAIN='" + canary + "'\n",
			}
		}
		e.pods.set(podEnv(), nil, "CPU (resourceFieldRef limits.cpu)")
		e.objects.put(secret("db"), "password", "p1")
		r := e.request("v1", "sources", podEnvSources)
		e.publish(r)
		e.wantFiles(r, files("p1")...)
		if got := e.pods.takeReads(); got != "pod-v1/main pod-v1/side" {
			t.Errorf("asked for %q", got)
		}
		e.wantEvents("InvalidEnvironmentVariableNames: left out, for a volume can't know them: CPU (resourceFieldRef limits.cpu), CPU (resourceFieldRef limits.cpu)")
		e.objects.put(secret("db"), "password", "p2")
		e.settle()
		e.wantFiles(r, files("p2")...)
		e.publish(r)
		if got := e.pods.takeReads(); got != "" {
			t.Errorf("asked again for %q", got)
		}
		e.wantEvents()

		text, err := os.ReadFile(e.recordPath("v1"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), canary) || !strings.Contains(string(text), `"db"`) {
			t.Errorf("the record is %s", text)
		}

		// What changes while the plugin is down arrives once the pod's spec can be read.
		e.pods.set(volume.Env{}, errors.New("connection refused"))
		e.halt()
		e.objects.put(secret("db"), "password", "p3")
		e.restart()
		e.settle()
		e.wantFiles(r, files("p2")...)
		e.wantProblem(r, "connection refused")
		e.pods.set(podEnv(), nil)
		after(2 * retryMax)
		e.settle()
		e.wantFiles(r, files("p3")...)
		e.wantProblem(r, "")
		e.unpublish(r)
		e.wantNothing()
	})
}

// The pod that a volume is for may be gone while the volume is torn down.
func TestPodEnvOfAPodThatIsGone(t *testing.T) {
	inBubble(t, func(e *env) {
		e.pods.set(podEnv(), nil)
		e.objects.put(secret("db"), "password", "p1")
		r := e.request("v1", "sources", podEnvSources)
		e.publish(r)
		e.pods.set(volume.Env{}, errNoPod)
		e.restart()
		e.settle()
		e.pods.takeReads()
		after(10 * retryMax)
		if got := strings.Count(e.pods.takeReads(), "main"); got > 2 {
			t.Errorf("asked %d times in %s", got, 10*retryMax)
		}
		e.unpublish(r)
		e.wantNothing()
	})
}

func TestPodEnvFailures(t *testing.T) {
	inBubble(t, func(e *env) {
		for _, test := range []struct {
			err  error
			want Reason
		}{
			{errNoPod, ReasonNotFound},
			{apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "pod-v1", errors.New("no")), ReasonForbidden},
			{fmt.Errorf("%w: no container", podenv.ErrUnusable), ReasonInvalid},
			{errors.New("connection refused"), ReasonUnavailable},
		} {
			e.pods.set(volume.Env{}, test.err)
			err := e.p.Publish(e.ctx, e.request("v1", "sources", podEnvSources))
			e.wantReason(err, test.want, "sources[0].podEnv.container: "+test.err.Error())
			e.wantNothing()
		}
	})
}

// What the env files skip is told once per change.
func TestSkippedVariables(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "B.x", "1", "A-y", "1", "ok", "1")
		r := e.request("v1", "sources", "[{env: {path: app.env, format: shell, envFrom: [{configMapRef: {name: app}}]}}]")
		e.publish(r)
		e.wantFiles(r, "app.env", "ok='1'\n")
		e.wantEvents("InvalidEnvironmentVariableNames: app.env: skipped, for a shell file can't hold them: A-y, B.x")
		e.objects.put(configMap("app"), "B.x", "2", "A-y", "1", "ok", "2")
		e.settle()
		after(3 * testResync)
		e.wantFiles(r, "app.env", "ok='2'\n")
		e.wantEvents()
		e.objects.put(configMap("app"), "B.x", "2", "ok", "2")
		e.settle()
		e.wantEvents("InvalidEnvironmentVariableNames: app.env: skipped, for a shell file can't hold them: B.x")
		e.objects.put(configMap("app"), "ok", "2")
		e.settle()
		e.wantEvents()
		e.objects.put(configMap("app"), "B.x", "3", "ok", "2")
		e.settle()
		e.wantEvents("InvalidEnvironmentVariableNames: app.env: skipped, for a shell file can't hold them: B.x")
		e.wantProblem(r, "")
	})
}

// Where nothing tells of changes, a publish that waits asks each second, and each live
// volume once per resync.
func TestRefresh(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1")
		waiting := e.publishing(r)
		e.wantWaiting(waiting)
		after(10*refreshTime + refreshTime/2)
		e.wantWaiting(waiting)
		if got := len(e.objects.takeRefreshes(configMap("app"))); got != 10 {
			t.Errorf("%d refreshes in 10 s", got)
		}
		e.objects.put(configMap("app"), "a", "1")
		if err := <-waiting; err != nil {
			t.Fatal(err)
		}
		e.objects.takeRefreshes(configMap("app"))
		after(10 * testResync)
		e.settle()
		if got := len(e.objects.takeRefreshes(configMap("app"))); got < 9 || got > 10 {
			t.Errorf("%d refreshes in 10 resyncs", got)
		}
		for i := range 3 { // the first may find the last resync still due
			e.objects.takeRefreshes(configMap("app"))
			e.objects.put(configMap("app"), "a", strconv.Itoa(i))
			e.settle()
		}
		if got := len(e.objects.takeRefreshes(configMap("app"))); got > 0 {
			t.Errorf("%d refreshes for a change", got)
		}
	})
}
