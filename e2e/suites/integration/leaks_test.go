package integration

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
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
)

// leakyNode is a plugin to which everything happens that brings it near to writing down a
// value or a token.
type leakyNode struct {
	*node
	// inSecrets is where the pods' tokens come.
	inSecrets bool
}

// TestNothingLeaks leads the plugin through all that happens to volumes, at more than the
// highest verbosity that there is a line for; every test ends with a search, this one's has
// the most to search.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	for format, inSecrets := range map[string]bool{"text": false, "json": true} {
		t.Run(fmt.Sprintf("%s, tokens in secrets %t", format, inSecrets), func(t *testing.T) {
			t.Parallel()
			n := &leakyNode{inSecrets: inSecrets, node: newNode(t, "-v=20", "--logging-format="+format,
				"--publish-wait=1s", "--max-volume-size=64Ki", anyPort)}
			n.secret("db", map[string]string{"password": n.canary(), "a.b": n.canary()})
			n.configMap("own", map[string]string{"own": n.canary()})
			v := n.tokened(n.volume(map[string]string{"sources": n.sources()}))
			n.publishes(v, soon)
			p := n.podWithEnv()
			n.publishes(p, soon)
			n.changes(v, p)
			n.refusals(v)
			n.restarts(v, p)
			n.restartWith("--publish-wait=100s") // so that a publish waits until it is dumped
			n.dumps(v)
			n.search()
			n.mustUnpublish(v)
			n.mustUnpublish(p)
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
	n.t.Helper()
	pod := schedule(n.t, n.namespace, corev1.PodSpec{Containers: []corev1.Container{{
		Name: "main", Image: "x",
		Env: []corev1.EnvVar{
			{Name: "LITERAL", Value: n.canary()},
			{Name: "LEFT_OUT", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
			{Name: "PASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "db"}, Key: "password",
			}}},
		},
	}}})
	v := n.volume(map[string]string{"sources": "- podEnv: {path: main.env, container: main}"})
	v.Pod, v.UID = pod.Name, string(pod.UID)
	return n.tokened(v)
}

// changes has the volumes follow their objects and their pods' tokens, also to where they
// can't.
func (n *leakyNode) changes(v, pod *harness.Volume) {
	n.t.Helper()
	value := n.canary()
	n.secret("db", map[string]string{"password": value})
	n.arrives(v, "password", value, soon)
	for _, republished := range []*harness.Volume{v, pod} {
		n.mustPublish(n.tokened(republished))
	}
	n.secret("db", map[string]string{"password": strings.Repeat(n.canary(), 8<<10)})
	n.hasCondition(v, "bytes")
	n.secret("db", map[string]string{"other": n.canary()})
	n.hasCondition(pod, "couldn't find key password")
	n.hasEvent(pod, "RefKeyNotFound", "couldn't find key password")
	n.removeObject("secret", "db")
	n.hasCondition(v, "not found")
	n.secret("db", map[string]string{"password": value})
	n.hasCondition(v, "")
	n.hasCondition(pod, "")
}

// refusals has publishes fail, of what a kubelet sends and of what none does. v is published.
func (n *leakyNode) refusals(v *harness.Volume) {
	n.t.Helper()
	n.secret("large", map[string]string{"large": strings.Repeat(n.canary(), 8<<10)})
	for _, refused := range []struct {
		code       codes.Code
		attributes map[string]string
	}{
		{codes.NotFound, map[string]string{"secret": "db", "items": "[{key: none, path: x}]"}},
		{codes.InvalidArgument, map[string]string{"secret": "db", "items": "[{key: password, path: ../x}]"}},
		{codes.OutOfRange, map[string]string{"secret": "large"}},
	} {
		wantStatus(n.t, n.finalAnswer(n.tokened(n.volume(refused.attributes))), refused.code)
	}
	other := *n.tokened(v)
	other.Attributes = map[string]string{"secret": "db", "defaultMode": "0400"}
	_, err := n.Node().NodePublishVolume(n.t.Context(), n.PublishRequest(&other))
	wantStatus(n.t, err, codes.AlreadyExists)
	r := n.tokened(n.volume(map[string]string{"secret": "db"}))
	must.Do(n.t, n.Prepare(r))
	request := n.PublishRequest(r)
	const tokens = "csi.storage.k8s.io/serviceAccount.tokens"
	request.VolumeContext[tokens], request.Secrets = "not JSON: "+n.canary(), map[string]string{tokens: n.canary(), n.canary(): n.canary()}
	request.PublishContext, request.Readonly = map[string]string{n.canary(): n.canary()}, false
	_, err = n.Node().NodePublishVolume(n.t.Context(), request)
	wantStatus(n.t, err, codes.InvalidArgument)
	must.Do(n.t, n.CleanUp(r))
}

// restarts has the plugin crash, and end as it should.
func (n *leakyNode) restarts(v, pod *harness.Volume) {
	n.t.Helper()
	n.crash()
	n.mustPublish(v)
	n.mustPublish(pod)
	n.restartWith()
	value := n.canary()
	n.secret("db", map[string]string{"password": value})
	n.arrives(v, "password", value, soon)
}

// dumps has the plugin write all its stacks while it holds values, and tokens in calls that
// wait: once as it is asked to, once as Go does in a crash.
func (n *leakyNode) dumps(v *harness.Volume) {
	n.t.Helper()
	for _, signal := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGSEGV} {
		value := n.canary()
		n.secret("db", map[string]string{"password": value})
		n.arrives(v, "password", value, soon)
		before := n.log()
		waits := n.tokened(n.volume(map[string]string{"secret": "none"}))
		answer := n.publishing(waits)
		n.hasEvent(waits, "RefNotFound", "not found")
		must.Do(n.t, n.Process().Stop(n.t.Context(), signal))
		if err := n.answer(answer, soon); err == nil {
			n.t.Error("the publish succeeded")
		}
		dump := n.log()[len(before):]
		for _, want := range []string{"goroutine ", "NodePublishVolume", "publisher.(*Publisher).Publish("} {
			if !bytes.Contains(dump, []byte(want)) {
				n.t.Errorf("on %s the plugin dumped no stack with %s:\n%s", signal, want, dump)
			}
		}
		n.crash()
		n.mustUnpublish(waits)
	}
}

// search makes sure that what is searched has all of it: the plugin's own lines and its
// client's in the log, events and an HTTP endpoint.
func (n *leakyNode) search() {
	n.t.Helper()
	must.Do(n.t, n.DiskLeaks())
	log := n.log()
	for _, want := range []string{"NodePublishVolume", "CSI call begins", "CSI call failed", "Watching", "SIGQUIT", "SIGSEGV"} {
		if !bytes.Contains(log, []byte(want)) {
			n.t.Errorf("the log lacks %q: is it at -v=10?", want)
		}
	}
	n.servingAddress()
	if events, err := harness.EventLeaks(n.t.Context(), shared.Client(), n.namespace); err != nil || events < 5 {
		n.t.Errorf("%d events, %v", events, err)
	}
	n.t.Logf("searched a log of %d bytes", len(log))
}

// TestPlantedLeaks sees to it that each search finds what is there to be found: what a plugin rightly shows of a pod or of
// the node is a value or a token here. The plugin is no node, whose test would fail.
func TestPlantedLeaks(t *testing.T) {
	t.Parallel()
	find := func(err error, where string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), where) {
			t.Errorf("got %v, want a leak in %s", err, where)
		}
	}
	namespace, value, token := newNamespace(t), leak.NewValue(), leak.NewToken()
	p := must.Get(harness.StartPlugin(t.Context(), harness.PluginOptions{
		Binary: shared.Plugin, Kubeconfig: shared.Kubeconfig, Dir: nodeDir(t), Env: []string{"PASSWORD=" + token},
		Args: []string{"-v=10", anyStatusPort, "--node-name=" + value},
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
	harness.Eventually(t, soon, func() error {
		events, err := harness.EventLeaks(t.Context(), shared.Client(), namespace)
		if events == 0 {
			return errors.New("no event yet")
		}
		find(err, "leaks a value")
		return nil
	})
	// The whole run's events are searched at its end, and none must come after these have gone.
	must.Do(t, errors.Join(p.Unpublish(t.Context(), v), p.Kill(),
		shared.Client().CoreV1().Events(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})))
}
