package integration

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
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

// refusals has publishes fail in each way.
func (n *leakyNode) refusals(v *harness.Volume) {
	n.t.Helper()
	for _, refused := range []struct {
		code       codes.Code
		attributes map[string]string
		change     func(*csi.NodePublishVolumeRequest)
	}{
		{code: codes.NotFound, attributes: map[string]string{"secret": "db", "items": "[{key: none, path: x}]"}},
		{code: codes.NotFound, attributes: map[string]string{"secret": "none"}},
		{code: codes.InvalidArgument, attributes: map[string]string{"secret": "db", "items": "[{key: password, path: ../x}]"}},
		{code: codes.InvalidArgument, attributes: map[string]string{"secret": "db", "colour": "red"}},
		{code: codes.InvalidArgument, attributes: map[string]string{"sources": n.sources() + "- secret: {name: db, items: [{key: password, path: app.env}]}"}},
		{code: codes.OutOfRange, attributes: map[string]string{"secret": "large"}},
		{code: codes.InvalidArgument, attributes: map[string]string{"secret": "db"}, change: without("csi.storage.k8s.io/pod.uid")},
		{code: codes.InvalidArgument, attributes: map[string]string{"secret": "db"}, change: func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "/etc" }},
		{code: codes.InvalidArgument, attributes: map[string]string{"secret": "db"}, change: func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil }},
		{code: codes.InvalidArgument, attributes: map[string]string{"secret": "db"}, change: func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext[tokens], r.Secrets = "not JSON: "+n.canary(), map[string]string{tokens: n.canary(), n.canary(): n.canary()}
			r.PublishContext = map[string]string{n.canary(): n.canary()}
			r.Readonly = false
		}},
		{code: codes.AlreadyExists, attributes: map[string]string{"secret": "db", "defaultMode": "0400"}, change: func(r *csi.NodePublishVolumeRequest) {
			r.VolumeId, r.TargetPath, r.VolumeContext["csi.storage.k8s.io/pod.uid"] = v.ID(), n.Target(v), v.UID
		}},
	} {
		n.secret("large", map[string]string{"large": strings.Repeat(n.canary(), 8<<10)})
		r := n.tokened(n.volume(refused.attributes))
		if err := n.Prepare(r); err != nil {
			n.t.Fatal(err)
		}
		request := n.PublishRequest(r)
		if refused.change != nil {
			refused.change(request)
		}
		var err error
		harness.Eventually(n.t, 2*soon, func() error {
			// On a busy machine a first watch may take longer than the publish waits.
			if _, err = n.Node().NodePublishVolume(n.t.Context(), request); status.Code(err) == codes.Unavailable {
				return err
			}
			return nil
		})
		wantStatus(n.t, err, refused.code)
		if err := n.CleanUp(r); err != nil {
			n.t.Fatal(err)
		}
	}
}

func without(key string) func(*csi.NodePublishVolumeRequest) {
	return func(r *csi.NodePublishVolumeRequest) { delete(r.VolumeContext, key) }
}

// tokens is where pods' tokens come in a request, in one map or the other.
const tokens = "csi.storage.k8s.io/serviceAccount.tokens"

// restarts has the plugin crash, and end as it should.
func (n *leakyNode) restarts(v, pod *harness.Volume) {
	n.t.Helper()
	n.crash()
	n.mustPublish(v)
	n.mustPublish(pod)
	n.restartWith()
	value := n.canary()
	n.secret("db", map[string]string{"password": value})
	n.arrives(v, "password", value, afterRestart)
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
		if err := n.Process().Stop(n.t.Context(), signal); err != nil {
			n.t.Fatal(err)
		}
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
	if err := n.DiskLeaks(); err != nil {
		n.t.Error(err)
	}
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
