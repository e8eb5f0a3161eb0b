package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// webSpread is the time over which the restarts of the Deployment's pods are spread.
	webSpread = time.Minute
	webPort   = 8080
	// readyTimeout is how long all of them together may take to get somewhere.
	readyTimeout = 5 * time.Minute
	// mostFailed is how many of a hundred requests may fail while all pods restart.
	mostFailed = 5
)

// needsLong leaves a test out of the short form.
func needsLong(t *testing.T) {
	t.Helper()
	if os.Getenv("REFVOL_LONG") == "" {
		t.Skip("SKIP: it belongs to the long form (REFVOL_LONG=1)")
	}
}

// withVariable is a labelled pod with the variable MODE of the ConfigMap settings, and with nothing else of it.
func withVariable(name string) *corev1.Pod {
	spec := withVariables(name, "true")
	c := &spec.Spec.Containers[0]
	c.EnvFrom, c.VolumeMounts, c.LivenessProbe, spec.Spec.Volumes = nil, nil, nil, nil
	return spec
}

// TestRestartsOfADeployment: 30 pods behind a Service restart for a change, spread over a minute, under a client that counts failed
// requests. It runs with no other test, because it measures times.
func TestRestartsOfADeployment(t *testing.T) {
	needsLong(t)
	n := newNamespace(t)
	n.needsPolicies()
	n.setConfigMap("settings", object{"mode": "slow"})
	template := withVariable("web")
	template.Annotations = map[string]string{"refvol.dev/spread": webSpread.String()}
	c := &template.Spec.Containers[0]
	c.Args = []string{"serve", fmt.Sprint(":", webPort), "MODE"}
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(webPort)}},
		PeriodSeconds: 1, FailureThreshold: 1,
	}
	n.deploy("web", template)
	newShell(n).output(fmt.Sprintf("kubectl expose deployment web --port=80 --target-port=%d", webPort))
	var pods []*pod
	eventually(t, readyTimeout, "all pods", func(ctx context.Context) error {
		deployed, err := n.deployed(ctx, "web")
		for i := range deployed {
			pods = append(pods, &pod{n, &deployed[i]})
		}
		return err
	})
	awaitReady(pods...)
	caller := newPod("client")
	caller.Spec.Containers[0].Args = []string{"requests", "http://web." + n.name}
	client := n.start(caller)
	requests := func(least int) (all struct{ Sent, Failed int }) {
		t.Helper()
		eventually(t, podTimeout, "requests", func(ctx context.Context) error {
			text, err := n.log(ctx, client.Pod, &corev1.PodLogOptions{TailLines: new(int64(1))})
			if err == nil {
				err = json.Unmarshal([]byte(text), &all)
			}
			if err == nil && all.Sent-all.Failed < least {
				err = fmt.Errorf("%+v", all)
			}
			return err
		})
		return all
	}

	before, begin := requests(100), time.Now()
	n.setConfigMap("settings", object{"mode": "fast"})
	var started []time.Duration
	for _, p := range pods {
		eventually(t, readyTimeout, p.Name+" has the mode fast", func(ctx context.Context) error {
			return p.hasVariables(ctx, map[string]string{"MODE": "fast"})
		})
	}
	for _, p := range pods {
		p.awaitReady()
		if restarts := p.restarts(t); restarts != 1 {
			t.Errorf("%s has restarted %d times", p.Name, restarts)
		}
		started = append(started, p.Status.ContainerStatuses[0].State.Running.StartedAt.Sub(begin).Round(time.Second))
	}
	after := requests(100)
	slices.Sort(started)
	sent, failed := after.Sent-before.Sent, after.Failed-before.Failed
	t.Logf("30 pods restarted in %s: after %v; %d of %d requests failed", time.Since(begin).Round(time.Second), started, failed, sent)
	if failed*100 > sent*mostFailed {
		t.Errorf("%d of %d requests failed", failed, sent)
	}
	if first, last := started[0], started[len(started)-1]; last-first < webSpread/2 {
		t.Errorf("the restarts came within %s", last-first)
	}
}

// TestRestartFigures prints how long it takes from a change to a container with the new variable, over 100 changes, and how long
// pods start, with the sidecar and without it.
func TestRestartFigures(t *testing.T) {
	needsLong(t)
	const count, rounds, starts = 25, 4, 8
	n := newNamespace(t)
	n.needsPolicies()
	took := map[bool][]time.Duration{}
	n.setConfigMap("settings", object{"mode": "0"})
	for range starts {
		for _, labelled := range []bool{true, false} {
			spec := withVariable("start")
			if !labelled {
				delete(spec.Labels, restartLabel)
			}
			begin := time.Now()
			p := n.start(spec)
			took[labelled] = append(took[labelled], time.Since(begin))
			p.delete()
		}
	}
	var pods []*pod
	for i := range count {
		name := fmt.Sprintf("settings-%02d", i)
		n.setConfigMap(name, object{"mode": "0"})
		spec := withVariable(name)
		spec.Spec.Containers[0].Env[0].ValueFrom.ConfigMapKeyRef.Name = name
		pods = append(pods, n.start(spec))
	}
	var restarts []time.Duration
	for round := range rounds {
		for _, p := range pods {
			value := fmt.Sprint(round + 1)
			begin := time.Now()
			n.setConfigMap(p.Name, object{"mode": value})
			eventually(t, restartTimeout, "the mode "+value, func(ctx context.Context) error {
				return p.hasVariables(ctx, map[string]string{"MODE": value})
			})
			restarts = append(restarts, time.Since(begin))
		}
	}
	slices.Sort(restarts)
	percentile := func(p int) time.Duration { return restarts[len(restarts)*p/100].Round(10 * time.Millisecond) }
	t.Logf("change to started: p50 %s, p90 %s, p99 %s of %d", percentile(50), percentile(90), percentile(99), len(restarts))
	t.Logf("pod start: with the sidecar %v, without %v", took[true], took[false])
}
