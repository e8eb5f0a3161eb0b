package suite

import (
	"context"
	"fmt"
	"path"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/judge"
)

const (
	// hostileTries is how many attacks there must be at least.
	hostileTries = 10000
	// lastText is in the objects when all attacks are over.
	lastText = "the last"
	// siegeLimit bounds all attacks together, while the honest pod reads.
	siegeLimit = 20 * time.Minute
	// afterAttacks is how soon a change arrives then, beside other tests.
	afterAttacks = busyLimit
)

// Whatever containers do that are root, each volume shows
// exactly what the API server has, and outside of the volumes nothing changes. The
// objects change all the time meanwhile.
//
// What a container with CAP_SYS_ADMIN in the node's own user namespace does to its own
// volume is another matter: it may make its mount writable, as it may do with whatever
// else it has of the node. The node's mount, and the volumes of other pods, stay as they
// are.
func TestHostileContainers(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	before, runs := s.look(), s.runs(t, s.node)
	s.earlier = s.warnings()

	reading := s.awaitLast(s.honest, siegeLimit)
	stop := s.keepUpdating()
	besieged := s.inBackground(func(ctx context.Context) (siege, error) { return s.hostile.assail(ctx, "attack", s.assault()) })
	tries := s.remounts()
	tries += besieged().withstood(t, "root in a container")
	updates := stop()

	s.arriveLast(reading)
	s.unharmed()
	s.compare(before)
	if got := s.runs(t, s.node); !slices.Equal(got, runs) {
		t.Errorf("pods after the attacks: %v, before: %v", got, runs)
	}
	t.Logf("%d attacks, %d updates meanwhile", tries, updates)
	if tries < hostileTries {
		t.Errorf("%d attacks, want at least %d", tries, hostileTries)
	}
}

// scene is where the attacks happen.
type scene struct {
	*namespace
	node  string
	paths nodePaths
	// canary is in a file of the honest pod's own, which nobody else may find.
	canary string
	// inspector sees the node; honest has volumes of the same objects as the others; hostile
	// has no rights but those of root in a container; the admins have more.
	inspector, honest, hostile *pod
	admins                     []*pod
	// earlier are the warnings on the honest pod from before the attacks, as from its start.
	earlier map[string]int32
}

func newScene(t *testing.T) *scene {
	t.Helper()
	node := takeQuietNode(t)
	n := newNamespace(t)
	s := &scene{namespace: n, node: node, paths: pluginPaths(t, n.mustPlugin(t, pluginNamespace, node)), canary: harness.NewCanary()}
	n.setConfigMap("settings", settingsOf("the first"))
	n.setSecret("login", loginOf("the first"))
	s.honest = n.create(onNode(honestPod(), node))
	s.hostile = n.create(onNode(hostilePod("hostile"), node))
	for _, spec := range adminPods() {
		s.admins = append(s.admins, n.create(onNode(spec, node)))
	}
	s.inspector = n.startOnNode("inspector", node)
	for _, p := range s.pods() {
		p.awaitReady()
	}
	if got := s.honest.probe("write", mountDir+"canary/canary", s.canary); got != "ok\n" {
		t.Fatalf("write the canary: %s", got)
	}
	return s
}

// pods are those that have volumes.
func (s *scene) pods() []*pod { return append([]*pod{s.honest, s.hostile}, s.admins...) }

// settingsOf and loginOf are what the objects hold at one time.
func settingsOf(text string) object { return object{"key": "key " + text, "app": "app " + text} }

func loginOf(text string) object { return object{"password": "password " + text} }

// showing is what a volume of the objects shows then.
func showing(text string) []string {
	return []string{
		"dir 0755 0:0 .",
		"link ..data -> GENERATION",
		"dir 0755 0:0 GENERATION",
		"dir 0755 0:0 GENERATION/conf",
		"file 0644 0:0 GENERATION/conf/app.yaml = app " + text,
		"file 0644 0:0 GENERATION/key = key " + text,
		"file 0644 0:0 GENERATION/password = password " + text,
		"link conf -> ..data/conf",
		"link key -> ..data/key",
		"link password -> ..data/password",
	}
}

// keepUpdating changes the objects again and again. The function that it returns ends
// that, and tells how many changes there were.
func (s *scene) keepUpdating() (stop func() int) {
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	updates, done := 0, make(chan error, 1)
	change := func() error {
		core, text := s.client.CoreV1(), fmt.Sprintf("number %d", updates)
		_, err := core.ConfigMaps(s.name).Update(ctx, contents{text: settingsOf(text)}.configMap("settings"), metav1.UpdateOptions{})
		if err == nil {
			_, err = core.Secrets(s.name).Update(ctx, contents{text: loginOf(text)}.secret("login"), metav1.UpdateOptions{})
		}
		return err
	}
	go func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for ; ctx.Err() == nil; updates++ {
			if err := change(); err != nil && ctx.Err() == nil {
				done <- err
				return
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
		done <- nil
	}()
	return func() int {
		s.t.Helper()
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
		return updates
	}
}

// awaitLast waits in both volumes of a pod for what is written last of all.
func (s *scene) awaitLast(p *pod, timeout time.Duration) []*pending {
	s.t.Helper()
	var all []*pending
	for _, volume := range hostileVolumes() {
		all = append(all, p.await(mountDir+volume+"/password", "password "+lastText, timeout))
	}
	return all
}

// arriveLast makes the last change, and checks how soon each pod has it, and that the
// honest pod heard of no trouble.
func (s *scene) arriveLast(reading []*pending) {
	s.t.Helper()
	all := slices.Concat(reading, s.awaitLast(s.hostile, podTimeout))
	s.setConfigMap("settings", settingsOf(lastText))
	began := time.Now()
	s.setSecret("login", loginOf(lastText))
	for _, w := range all {
		got := w.arrive()
		took := got.at.Sub(began)
		s.t.Logf("%s of %s: after %s; %d of %d reads failed %s", w.what, w.p.Name, milliseconds(took), got.Failed, got.Reads, got.Error)
		// The hostile pod may harm what it reads itself.
		if w.p == s.honest {
			if err := judge.Reads(got.Reads, got.Failed, got.Error); err != nil {
				s.t.Errorf("%s of %s: %v", w.what, w.p.Name, err)
			}
		}
		if took > afterAttacks {
			s.t.Errorf("%s came after %s to %s", w.what, milliseconds(took), w.p.Name)
		}
	}
	for _, p := range s.admins {
		for _, volume := range hostileVolumes() {
			p.probe("await", mountDir+volume+"/password", "password "+lastText, podTimeout.String())
		}
	}
	for _, p := range s.pods() {
		for _, volume := range hostileVolumes() {
			p.probe("await", mountDir+volume+"/key", "key "+lastText, podTimeout.String()) // by another watch
		}
	}
	for text, count := range s.warnings() {
		if count > s.earlier[text] {
			s.t.Errorf("event on the honest pod: %s", text)
		}
	}
}

// warnings counts the events on the honest pod that are warnings, by their text.
func (s *scene) warnings() map[string]int32 {
	s.t.Helper()
	events, err := s.client.CoreV1().Events(s.name).List(s.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(s.honest.UID)})
	if err != nil {
		s.t.Fatal(err)
	}
	counts := map[string]int32{}
	for _, e := range events.Items {
		if e.Type != corev1.EventTypeNormal {
			counts[e.Reason+": "+e.Message] += max(e.Count, 1)
		}
	}
	return counts
}

// hostileVolumes are the names of the volumes of each pod that has some.
func hostileVolumes() []string { return []string{"atomic", "in-place"} }

// bothStrategies describes a volume of each write strategy.
func bothStrategies() []corev1.Volume {
	const sources = `
- configMap:
    name: settings
    items: [{key: key, path: key}, {key: app, path: conf/app.yaml}]
- secret: {name: login}
`
	return []corev1.Volume{
		refvol("atomic", attributes{"sources": sources}),
		refvol("in-place", attributes{"sources": sources, "writeStrategy": "InPlace"}),
	}
}

// emptyDir describes a volume that the pod may write to.
func emptyDir(name string, medium corev1.StorageMedium) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}}
}

// onNode returns where on the node is what a pod has below a volume.
func (s *scene) onNode(p *pod, plugin, volume string, below ...string) string {
	return path.Join(append([]string{s.paths.pods, string(p.UID), "volumes/kubernetes.io~" + plugin, volume}, below...)...)
}

// honestPod describes a pod that does nothing but read, and has a file of its own.
func honestPod() *corev1.Pod {
	return newPod("honest", append(bothStrategies(), emptyDir("canary", corev1.StorageMediumDefault))...)
}

// hostilePod describes a pod whose first container, as root, has its volumes in every way
// that there is, and asks for write in each. The second one has them, too.
func hostilePod(name string) *corev1.Pod {
	// The neighbour is a tmpfs, too: what works there would work in the volumes.
	volumes := append(bothStrategies(), emptyDir("scratch", corev1.StorageMediumMemory))
	spec := newPod(name, volumes...)
	spec.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser:      new(int64(0)),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined},
	}
	spec.Spec.ShareProcessNamespace = new(true)
	for _, volume := range hostileVolumes() {
		mountBelow(&spec.Spec.Containers[0], volume+":/keys/"+volume+"/key:key", volume+":/keys/"+volume+"/conf/app.yaml:conf/app.yaml", volume+":/dirs/"+volume+":conf")
	}
	spec.Spec.Containers = append(spec.Spec.Containers, newContainer("second", volumes))
	return spec
}

// ownUsers is the admin whose rights end with its own users.
const ownUsers = "own-users"

// adminPods describes hostile pods whose containers may mount.
func adminPods() []*corev1.Pod {
	sysAdmin := &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}
	var specs []*corev1.Pod
	for name, rights := range map[string]*corev1.SecurityContext{
		"sys-admin": sysAdmin, "privileged": {Privileged: new(true)}, ownUsers: sysAdmin,
	} {
		spec := hostilePod(name)
		spec.Spec.HostUsers = new(name != ownUsers)
		for i := range spec.Spec.Containers {
			spec.Spec.Containers[i].SecurityContext = rights
		}
		specs = append(specs, spec)
	}
	return specs
}
