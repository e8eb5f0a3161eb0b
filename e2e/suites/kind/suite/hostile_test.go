package suite

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/probe/answers"
	"github.com/refvol/refvol/internal/must"
)

const (
	// hostileTries is how many attacks on files there must be at least, which docs/security.md names.
	hostileTries = 10000
	// lastText is in the objects when all attacks are over.
	lastText = "the last"
	// ownUsers is the admin whose rights end with its own users.
	ownUsers = "own-users"
)

// Whatever containers do that are root, each volume shows
// exactly what the API server has, and nothing leads out of the container, nor changes outside of the
// volumes. The objects change all the time meanwhile.
//
// What a container with CAP_SYS_ADMIN in the node's own user namespace does to its own
// volume is another matter: it may make its mount writable, as it may do with whatever
// else it has of the node. The node's mount, and the volumes of other pods, stay as they
// are.
func TestHostileContainers(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	runs, outside := s.runs(t, s.node), s.outside()

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	updated := make(chan int, 1)
	go func() { updated <- s.keepUpdating(ctx) }()
	besieged := make(chan answers.Siege, 1)
	go func() { besieged <- s.assail(s.hostile, "attack", true) }()
	s.remounts()
	tries := withstood(t, "root in a container", <-besieged)
	stop()
	updates := <-updated

	s.setLast()
	s.unharmed()
	now := s.outside()
	if gone, come := without(now, outside), without(outside, now); len(gone)+len(come) > 0 {
		t.Errorf("outside of the volumes\n%q\nhas become\n%q", gone, come)
	}
	if got := s.runs(t, s.node); !slices.Equal(got, runs) {
		t.Errorf("pods after the attacks: %v, before: %v", got, runs)
	}
	t.Logf("%d attacks on files, %d updates meanwhile", tries, updates)
	if tries < hostileTries {
		t.Errorf("%d attacks, want at least %d", tries, hostileTries)
	}
}

// scene is where the attacks happen.
type scene struct {
	*namespace
	node string
	// inspector sees the node; honest has volumes of the same objects as the others; hostile
	// has no rights but those of root in a container; the admins have more.
	inspector, honest, hostile *pod
	admins                     []*pod
}

func newScene(t *testing.T) *scene {
	t.Helper()
	node := shareNode(t)
	n := newNamespace(t)
	s := &scene{namespace: n, node: node}
	n.setConfigMap("settings", settingsOf("the first"))
	n.setSecret("login", loginOf("the first"))
	s.honest = n.create(onNode(newPod("honest", bothStrategies()...), node)) // it does nothing but read
	s.hostile = n.create(onNode(hostilePod("hostile"), node))
	sysAdmin := &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}
	for name, rights := range map[string]*corev1.SecurityContext{
		"sys-admin": sysAdmin, "privileged": {Privileged: new(true)}, ownUsers: sysAdmin,
	} {
		spec := hostilePod(name)
		spec.Spec.HostUsers = new(name != ownUsers)
		for i := range spec.Spec.Containers {
			spec.Spec.Containers[i].SecurityContext = rights
		}
		s.admins = append(s.admins, n.create(onNode(spec, node)))
	}
	s.inspector = n.startOnNode("inspector", node)
	awaitReady(s.pods()...)
	return s
}

// pods are those that have volumes.
func (s *scene) pods() []*pod { return append([]*pod{s.honest, s.hostile}, s.admins...) }

// settingsOf and loginOf are what the objects hold at one time.
func settingsOf(text string) object { return object{"key": "key " + text, "app": "app " + text} }

func loginOf(text string) object { return object{"password": "password " + text} }

// showing is what a volume of the objects shows then.
func showing(text string) snapshot {
	return snapshotOf(object{"conf/app.yaml": "app " + text, "key": "key " + text, "password": "password " + text})
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

// hostilePod describes a pod whose first container, as root, has its volumes in every way
// that there is, and asks for write in each. The second one has them, too.
func hostilePod(name string) *corev1.Pod {
	// The neighbour is a tmpfs, too: what works there would work in the volumes.
	scratch := emptyDir("scratch")
	scratch.EmptyDir.Medium = corev1.StorageMediumMemory
	volumes := append(bothStrategies(), scratch)
	spec := newPod(name, volumes...)
	spec.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser:      new(int64(0)),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined},
	}
	spec.Spec.ShareProcessNamespace = new(true)
	for _, volume := range hostileVolumes() {
		mountBelow(&spec.Spec.Containers[0], volume+":/keys/"+volume+"/key:key",
			volume+":/keys/"+volume+"/conf/app.yaml:conf/app.yaml", volume+":/dirs/"+volume+":conf")
	}
	spec.Spec.Containers = append(spec.Spec.Containers, newContainer("second", volumes))
	return spec
}

// keepUpdating changes the objects again and again until ctx ends, and returns how many changes there were.
func (s *scene) keepUpdating(ctx context.Context) (updates int) {
	core := s.client.CoreV1()
	for ; ctx.Err() == nil; updates++ {
		text := fmt.Sprintf("number %d", updates)
		_, err := core.ConfigMaps(s.name).Update(ctx, contents{text: settingsOf(text)}.configMap("settings"), metav1.UpdateOptions{})
		if err == nil {
			_, err = core.Secrets(s.name).Update(ctx, contents{text: loginOf(text)}.secret("login"), metav1.UpdateOptions{})
		}
		if err != nil && ctx.Err() == nil {
			s.t.Error(err)
			return updates
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return updates
}

// assail has the pod's first container attack its mounts, or also the files in its volumes.
func (s *scene) assail(p *pod, command string, files bool) (got answers.Siege) {
	a := answers.Assault{
		Scratch: mountDir + "scratch", Outside: s.onNode(s.honest, "atomic") + "/key", Tries: hostileTries,
	}
	for _, volume := range hostileVolumes() {
		a.Places = append(
			a.Places,
			answers.Place{Dir: mountDir + volume, Name: "key"},
			answers.Place{Dir: "/dirs/" + volume, Name: "app.yaml"},
			answers.Place{Dir: "/keys/" + volume, Name: "key", Alone: true},
			answers.Place{Dir: "/keys/" + volume + "/conf", Name: "app.yaml", Alone: true},
		)
		if files {
			a.Places = append(a.Places, answers.Place{Dir: mountDir + volume + "/..data", Name: "password"},
				answers.Place{Dir: mountDir + volume + "/conf", Name: "app.yaml"})
		}
	}
	answer, err := p.ask(s.t.Context(), "probe", command, toJSON(s.t, a))
	if err == nil {
		err = json.Unmarshal([]byte(answer), &got)
	}
	if err != nil {
		s.t.Errorf("%s: %v", p.Name, err)
	}
	return got
}

// withstood fails the test for each attack that has succeeded, and for each that would not succeed anywhere. It returns how many tries
// there were, without those that met a generation which went, and those that found no way out.
func withstood(t *testing.T, who string, s answers.Siege) int {
	t.Helper()
	t.Logf("%s: %v", who, s.Report)
	if len(s.Succeeded) > 0 || len(s.Report) == 0 {
		t.Errorf("%s: of %d attacks these succeeded: %q", who, len(s.Report), s.Succeeded)
	}
	for name, got := range s.Rehearsal {
		if got["ok"]+got["ENOSYS"] == 0 { // an older kernel has not all of them
			t.Errorf("%s: %s does not even succeed where it may: %v", who, name, got)
		}
	}
	tries := 0
	for _, got := range s.Report {
		for answer, count := range got {
			if answer != "ENOENT" {
				tries += count
			}
		}
	}
	return tries
}

// remounts has each hostile pod try to make its mounts writable, and those withstand it that have no rights on the node.
func (s *scene) remounts() {
	s.t.Helper()
	got := s.assail(s.hostile, "remount", false)
	got.Rehearsal = nil // who may not mount has nothing to rehearse with
	withstood(s.t, "remount by root in a container", got)
	for _, p := range s.admins {
		if got := s.assail(p, "remount", false); p.Name == ownUsers {
			withstood(s.t, "remount with CAP_SYS_ADMIN in a pod with users of its own", got)
		} else { // nothing holds these, but they are held to their own volume: see unharmed
			s.t.Logf("remount with CAP_SYS_ADMIN on the node, %s: %v", p.Name, got.Report)
		}
	}
	// Whom nothing keeps from it finds what nobody else may find: the attack can succeed.
	if got := s.assail(s.inspector, "escape", false); got.Report["escape-process-root"]["ok"] == 0 {
		s.t.Errorf("not even the node's root finds the honest pod's file: %v", got.Report)
	}
}

// setLast makes the last change, and waits until all pods have it.
func (s *scene) setLast() {
	s.t.Helper()
	s.setConfigMap("settings", settingsOf(lastText))
	s.setSecret("login", loginOf(lastText))
	for _, p := range s.pods() {
		for _, volume := range hostileVolumes() {
			for _, name := range []string{"key", "password"} { // by two watches
				p.awaitText(mountDir+volume+"/"+name, name+" "+lastText, podTimeout)
			}
		}
	}
}

// onNode returns where on the node the mount of a pod's volume is.
func (s *scene) onNode(p *pod, volume string) string {
	return podsDir + string(p.UID) + "/volumes/kubernetes.io~csi/" + volume + "/mount"
}

// outside returns what of the plugin's directory and of the honest pod's no update changes: the files, by their modes and hashes, and the mounts.
func (s *scene) outside() (seen []string) {
	s.t.Helper()
	for _, dir := range []string{socketsDir + driver, podsDir + string(s.honest.UID)} {
		for _, e := range s.inspector.tree(nodeRoot + dir) {
			if !strings.HasPrefix(e.Path, "volumes/kubernetes.io~csi/") || !strings.Contains(e.Path, "/mount/") {
				seen = append(seen, fmt.Sprintf("%s/%s %s %s %d:%d %s %x", dir, e.Path, e.Type, e.Mode, e.UID, e.GID, e.Link, sha256.Sum256(e.Content)))
			}
		}
	}
	return append(seen, having(string(s.honest.UID), must.Get(s.inspector.mountTable(s.t.Context()))(s.t))...)
}

// without returns the lines that are not among others.
func without(others, lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return slices.Contains(others, line) })
}

// unharmed checks that each volume has what the API server has, byte for byte, and
// nothing else: as the pods see it, and as the node does, where nobody can write to it.
func (s *scene) unharmed() {
	s.t.Helper()
	for _, p := range s.pods() {
		p.awaitOneGeneration(mountDir + "atomic")
		for _, volume := range hostileVolumes() {
			mount := nodeRoot + s.onNode(p, volume)
			for who, seen := range map[string][]answers.Entry{"the pod": p.tree(mountDir + volume), "the node": s.inspector.tree(mount)} {
				got := newSnapshot(seen)
				if want := showing(lastText); !maps.Equal(got, want) {
					s.t.Errorf("%s sees in %s of %s:\n got %q\nwant %q", who, volume, p.Name, got, want)
				}
			}
			for _, file := range []string{"/key", "/..data/key", "/new"} {
				if got := s.inspector.probe("write", mount+file, "changed"); got != "EROFS\n" {
					s.t.Errorf("the node's root writes %s of %s: %s", volume+file, p.Name, got)
				}
			}
			s.onlyReadOnly(p, volume)
		}
	}
}

// onlyReadOnly checks that every mount of the volume, in whatever mount namespace, is
// read-only.
func (s *scene) onlyReadOnly(p *pod, volume string) {
	s.t.Helper()
	found, err := s.inspector.mounts(s.t.Context(), p.volumeID(volume))
	if err != nil || len(found) == 0 {
		s.t.Errorf("%s of %s is mounted %d times: %v", volume, p.Name, len(found), err)
	}
	for _, m := range found {
		const options = 5 // the field of a line of mountinfo
		if fields := strings.Fields(m.Line); !slices.Contains(strings.Split(fields[options], ","), "ro") {
			s.t.Errorf("%s of %s is writable to %s: %s", volume, p.Name, m.Process, m.Line)
		}
	}
}
