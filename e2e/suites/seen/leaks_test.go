package seen

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
)

// leakyNode is a plugin to which everything happens that brings it near to writing down a value or a token.
type leakyNode struct {
	*world.Node
	// inSecrets is where the pods' tokens come.
	inSecrets bool
}

// TestNothingLeaks leads the plugin through all that happens to volumes, at more than the highest verbosity that there is a line for; every
// test ends with a search, this one's has the most to search.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	for format, inSecrets := range map[string]bool{"text": false, "json": true} {
		t.Run(fmt.Sprintf("%s, tokens in secrets %t", format, inSecrets), func(t *testing.T) {
			t.Parallel()
			n := &leakyNode{inSecrets: inSecrets, Node: lab.NewNode(t, "-v=20", "--logging-format="+format,
				"--publish-wait=1s", "--max-volume-size=64Ki", world.AnyPort)}
			n.Secret("db", map[string]string{"password": n.Canary(), "a.b": n.Canary()})
			n.ConfigMap("own", map[string]string{"own": n.Canary()})
			v := n.tokened(n.Volume(map[string]string{"sources": n.sources()}))
			n.Publishes(v, world.Soon)
			p := n.podWithEnv()
			n.Publishes(p, world.Soon)
			n.changes(v, p)
			n.refusals(v)
			n.restarts(v, p)
			n.RestartWith("--publish-wait=100s") // so that a publish waits until it is dumped
			n.dumps(v)
			n.search()
			n.MustUnpublish(v)
			n.MustUnpublish(p)
		})
	}
}

// tokened gives the volume a new token.
func (n *leakyNode) tokened(v *harness.Volume) *harness.Volume {
	v.Token, v.TokenInSecrets = leak.NewToken(), n.inSecrets
	return v
}

// sources are of every kind that shows values.
func (n *leakyNode) sources() string {
	return `
- configMap: {name: own}
- secret: {name: db}
- env:
    path: app.env
    envFrom: [{secretRef: {name: db}}]
    env: [{name: URL, value: "db://$(password)"}, {name: P, valueFrom: {secretKeyRef: {name: db, key: password}}}]
- env: {path: app.sh, format: shell, envFrom: [{secretRef: {name: db}}]}
`
}

// podWithEnv makes a pod with values in its own spec, and returns a volume of it.
func (n *leakyNode) podWithEnv() *harness.Volume {
	n.T.Helper()
	pod := lab.Schedule(n.T, n.Namespace, corev1.PodSpec{Containers: []corev1.Container{{
		Name: "main", Image: "x",
		Env: []corev1.EnvVar{
			{Name: "LITERAL", Value: n.Canary()},
			{Name: "LEFT_OUT", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
			{Name: "PASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "db"}, Key: "password",
			}}},
		},
	}}})
	v := n.Volume(map[string]string{"sources": "- podEnv: {path: main.env, container: main}"})
	v.Pod, v.UID = pod.Name, string(pod.UID)
	return n.tokened(v)
}

// changes has the volumes follow their objects and their pods' tokens, also to where they can't.
func (n *leakyNode) changes(v, pod *harness.Volume) {
	n.T.Helper()
	value := n.Canary()
	n.Secret("db", map[string]string{"password": value})
	n.Arrives(v, "password", value, world.Soon)
	for _, republished := range []*harness.Volume{v, pod} {
		n.MustPublish(n.tokened(republished))
	}
	n.Secret("db", map[string]string{"password": strings.Repeat(n.Canary(), 8<<10)})
	n.HasCondition(v, "bytes")
	n.Secret("db", map[string]string{"other": n.Canary()})
	n.HasCondition(pod, "couldn't find key password")
	hasEvent(n.Node, pod, "RefKeyNotFound", "couldn't find key password")
	n.RemoveObject("secret", "db")
	n.HasCondition(v, "not found")
	n.Secret("db", map[string]string{"password": value})
	n.HasCondition(v, "")
	n.HasCondition(pod, "")
}

// refusals has publishes fail, of what a kubelet sends and of what none does. v is published.
func (n *leakyNode) refusals(v *harness.Volume) {
	n.T.Helper()
	n.Secret("large", map[string]string{"large": strings.Repeat(n.Canary(), 8<<10)})
	for _, refused := range []struct {
		code       codes.Code
		attributes map[string]string
	}{
		{codes.NotFound, map[string]string{"secret": "db", "items": "[{key: none, path: x}]"}},
		{codes.InvalidArgument, map[string]string{"secret": "db", "items": "[{key: password, path: ../x}]"}},
		{codes.OutOfRange, map[string]string{"secret": "large"}},
	} {
		world.WantStatus(n.T, n.FinalAnswer(n.tokened(n.Volume(refused.attributes))), refused.code)
	}
	other := *n.tokened(v)
	other.Attributes = map[string]string{"secret": "db", "defaultMode": "0400"}
	_, err := n.CSI().NodePublishVolume(n.T.Context(), n.PublishRequest(&other))
	world.WantStatus(n.T, err, codes.AlreadyExists)
	r := n.tokened(n.Volume(map[string]string{"secret": "db"}))
	must.Do(n.T, n.Prepare(r))
	request := n.PublishRequest(r)
	const tokens = "csi.storage.k8s.io/serviceAccount.tokens"
	request.VolumeContext[tokens], request.Secrets = "not JSON: "+n.Canary(), map[string]string{tokens: n.Canary(), n.Canary(): n.Canary()}
	request.PublishContext, request.Readonly = map[string]string{n.Canary(): n.Canary()}, false
	_, err = n.CSI().NodePublishVolume(n.T.Context(), request)
	world.WantStatus(n.T, err, codes.InvalidArgument)
	must.Do(n.T, n.CleanUp(r))
}

// restarts has the plugin crash, and end as it should.
func (n *leakyNode) restarts(v, pod *harness.Volume) {
	n.T.Helper()
	n.Crash()
	n.MustPublish(v)
	n.MustPublish(pod)
	n.RestartWith()
	value := n.Canary()
	n.Secret("db", map[string]string{"password": value})
	n.Arrives(v, "password", value, world.Soon)
}

// dumps has the plugin write all its stacks while it holds values, and tokens in calls that wait: once as it is asked to, once as Go does
// in a crash.
func (n *leakyNode) dumps(v *harness.Volume) {
	n.T.Helper()
	for _, signal := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGSEGV} {
		value := n.Canary()
		n.Secret("db", map[string]string{"password": value})
		n.Arrives(v, "password", value, world.Soon)
		before := n.Log()
		waits := n.tokened(n.Volume(map[string]string{"secret": "none"}))
		answer := n.Publishing(waits)
		hasEvent(n.Node, waits, "RefNotFound", "not found")
		must.Do(n.T, n.Process().Stop(n.T.Context(), signal))
		if err := n.Answer(answer, world.Soon); err == nil {
			n.T.Error("the publish succeeded")
		}
		dump := n.Log()[len(before):]
		for _, want := range []string{"goroutine ", "NodePublishVolume", "publisher.(*Publisher).Publish("} {
			if !bytes.Contains(dump, []byte(want)) {
				n.T.Errorf("on %s the plugin dumped no stack with %s:\n%s", signal, want, dump)
			}
		}
		n.Crash()
		n.MustUnpublish(waits)
	}
}

// search makes sure that what is searched has all of it: the plugin's own lines and its client's in the log, events and an HTTP endpoint.
func (n *leakyNode) search() {
	n.T.Helper()
	must.Do(n.T, n.DiskLeaks())
	log := n.Log()
	for _, want := range []string{"NodePublishVolume", "CSI call begins", "CSI call failed", "Watching", "SIGQUIT", "SIGSEGV"} {
		if !bytes.Contains(log, []byte(want)) {
			n.T.Errorf("the log lacks %q: is it at -v=10?", want)
		}
	}
	n.Address(n.HTTPAddress)
	if events, err := harness.EventLeaks(n.T.Context(), lab.Client(), n.Namespace); err != nil || events < 5 {
		n.T.Errorf("%d events, %v", events, err)
	}
	n.T.Logf("searched a log of %d bytes", len(log))
}

// TestPlantedLeaks sees to it that each search finds what is there to be found: what a plugin rightly shows of a pod or of the node is a
// value or a token here. The plugin is no node, whose test would fail.
func TestPlantedLeaks(t *testing.T) {
	t.Parallel()
	find := func(err error, where string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), where) {
			t.Errorf("got %v, want a leak in %s", err, where)
		}
	}
	namespace, value, token := lab.NewNamespace(t), leak.NewValue(), leak.NewToken()
	p := must.Get(harness.StartPlugin(t.Context(), harness.PluginOptions{
		Binary: lab.Plugin, Kubeconfig: lab.Kubeconfig, Dir: world.NodeDir(t), Env: []string{"PASSWORD=" + token},
		Args: []string{"-v=10", world.AnyStatusPort, "--node-name=" + value},
	}))(t)
	t.Cleanup(func() { must.Do(t, p.Close()) })
	err := p.Publish(t.Context(), harness.NewVolume(namespace, "pod", map[string]string{"defaultMode": token, "configMap": "app"}))
	err = errors.Join(err, p.ShownLeaks(t.Context()))
	for _, where := range []string{
		"/environ leaks a token", "/cmdline leaks a value", "/status leaks a value", "the answer to NodePublishVolume leaks a token",
	} {
		find(err, where)
	}
	find(p.DiskLeaks(), p.LogPath()+" leaks a ")

	// An event names a path.
	v := harness.NewVolume(namespace, "pod", map[string]string{"sources": "- env: {path: " + value + ", env: [{name: NOT.FOR.FILES, value: x}]}"})
	must.Do(t, p.Publish(t.Context(), v))
	harness.Eventually(t, world.Soon, func() error {
		events, err := harness.EventLeaks(t.Context(), lab.Client(), namespace)
		if events == 0 {
			return errors.New("no event yet")
		}
		find(err, "leaks a value")
		return nil
	})
	// The whole run's events are searched at its end, and none must come after these have gone.
	must.Do(t, errors.Join(p.Unpublish(t.Context(), v), p.Kill(),
		lab.Client().CoreV1().Events(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})))
}

// hasEvent waits for an event on the volume's pod with this reason and text, that was written once, whatever was retried.
func hasEvent(n *world.Node, v *harness.Volume, reason, text string) {
	n.T.Helper()
	harness.Eventually(n.T, world.Soon, func() error {
		events := n.EventsOf(v, reason)
		for i := range events {
			event := &events[i]
			if !strings.Contains(event.Message, text) {
				continue
			}
			if event.InvolvedObject.Kind != "Pod" || event.Type != corev1.EventTypeWarning || event.Count != 1 {
				return fmt.Errorf("event on %+v of type %s, %d times", event.InvolvedObject, event.Type, event.Count)
			}
			return nil
		}
		return fmt.Errorf("no event %s with %q among %+v", reason, text, events)
	})
}
