package publisher

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/volume"
)

// request returns a request for a volume of its own pod, for which the kubelet has made a directory. attributes come in pairs. Without any,
// the volume shows the ConfigMap "app".
func (e *env) request(id string, attributes ...string) binding.Request {
	e.Helper()
	uid := "uid-" + id
	if len(attributes) == 0 {
		attributes = []string{"configMap", "app"}
	}
	r := binding.Request{
		VolumeID:   id,
		Target:     filepath.Join(e.opts.KubeletDir, "pods", uid, "volumes/kubernetes.io~csi/settings/mount"),
		Pod:        volume.Pod{Namespace: testNamespace, Name: "pod-" + id, UID: types.UID(uid), ServiceAccount: "default"},
		Attributes: mapOf(attributes),
		ReadOnly:   true,
	}
	e.makeTarget(r)
	return r
}

// inOnePod returns requests for n volumes of one pod.
func (e *env) inOnePod(id string, n int, attributes ...string) (all []binding.Request) {
	e.Helper()
	for i := range n {
		r := e.request(id, attributes...)
		r.VolumeID = fmt.Sprint(id, "-", i)
		r.Target = strings.Replace(r.Target, "/settings/", fmt.Sprint("/settings-", i, "/"), 1)
		e.makeTarget(r)
		all = append(all, r)
	}
	return all
}

// makeTarget creates the directory of a target, as the kubelet does.
func (e *env) makeTarget(r binding.Request) {
	e.Helper()
	e.must(os.MkdirAll(filepath.Dir(r.Target), 0o755))
}

// publish publishes one after another, and expects success.
func (e *env) publish(all ...binding.Request) {
	e.Helper()
	for _, r := range all {
		e.pods.add(r)
		if err := e.p.Publish(e.ctx, r); err != nil {
			e.Fatalf("Publish %s: %v", r.VolumeID, err)
		}
		synctest.Wait() // its reconcile ends a moment later
	}
}

// publishNew publishes a new request.
func (e *env) publishNew(id string, attributes ...string) binding.Request {
	e.Helper()
	r := e.request(id, attributes...)
	e.publish(r)
	return r
}

// publishApp publishes the volume v1 when the ConfigMap "app" has a value for the key a, which is 1.
func (e *env) publishApp(attributes ...string) binding.Request {
	e.Helper()
	e.objects.put(configMap("app"), "a", "1")
	return e.publishNew("v1", attributes...)
}

// update creates or changes an object, and waits until nothing happens any more.
func (e *env) update(ref volume.Ref, pairs ...string) {
	e.Helper()
	e.objects.put(ref, pairs...)
	e.settle()
}

// updateApp is update for the ConfigMap "app", whose keys and values must be all that a volume shows then.
func (e *env) updateApp(r binding.Request, pairs ...string) {
	e.Helper()
	e.update(configMap("app"), pairs...)
	e.wantFiles(r, pairs...)
}

// remove is update for a deletion.
func (e *env) remove(ref volume.Ref) {
	e.Helper()
	e.objects.remove(ref)
	e.settle()
}

// removeFile removes a file of a volume, by a path below its mount.
func (e *env) removeFile(r binding.Request, path ...string) {
	e.Helper()
	e.must(os.Remove(filepath.Join(append([]string{e.mounts.Directory(r.Target)}, path...)...)))
}

// end unpublishes the last volumes, of which nothing may remain.
func (e *env) end(all ...binding.Request) {
	e.Helper()
	for _, r := range all {
		e.unpublish(r)
	}
	e.wantNothing()
}

// unpublish unpublishes and expects success.
func (e *env) unpublish(r binding.Request) {
	e.Helper()
	if err := e.p.Unpublish(e.ctx, r.VolumeID, r.Target); err != nil {
		e.Fatalf("Unpublish %s: %v", r.VolumeID, err)
	}
}

// publishing starts a publish. The result arrives on the channel.
func (e *env) publishing(r binding.Request) <-chan error {
	e.pods.add(r)
	result := make(chan error, 1)
	go func() { result <- e.p.Publish(e.ctx, r) }()
	return result
}

// unpublishing is publishing for an unpublish.
func (e *env) unpublishing(r binding.Request) <-chan error {
	result := make(chan error, 1)
	go func() { result <- e.p.Unpublish(e.ctx, r.VolumeID, r.Target) }()
	return result
}

// publishMany publishes n new requests, each of a pod of its own.
func (e *env) publishMany(n int) (all []binding.Request) {
	e.Helper()
	for i := range n {
		all = append(all, e.publishNew(fmt.Sprint("v", i)))
	}
	return all
}

// waiting starts a publish that waits.
func (e *env) waiting(r binding.Request) <-chan error {
	e.Helper()
	result := e.publishing(r)
	e.wantWaiting(result)
	return result
}
