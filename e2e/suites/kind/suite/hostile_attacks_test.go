package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// place is a file that is attacked, as the probe takes it.
type place struct {
	Dir  string `json:"dir"`
	Name string `json:"name"`
	// Alone says that the file itself is mounted.
	Alone bool `json:"alone"`
}

// assault is what the probe is to attack.
type assault struct {
	Places        []place `json:"places"`
	Scratch       string  `json:"scratch"`
	Outside       string  `json:"outside"`
	Seconds       int     `json:"seconds"`
	Tries         int     `json:"tries"`
	UserNamespace bool    `json:"userNamespace"`
}

// tally is what became of one kind of attack.
type tally struct {
	Tries     int            `json:"tries"`
	Answers   map[string]int `json:"answers"`
	Succeeded []string       `json:"succeeded"`
}

// siege is what the probe tells of its attacks, by their names: on the places, and on what
// the attacker has made for itself, where they must succeed.
type siege struct {
	Rehearsal map[string]tally `json:"rehearsal"`
	Report    map[string]tally `json:"report"`
}

// assault is on everything that a hostile pod's first container has of its volumes.
func (s *scene) assault() assault {
	a := s.assaultOnMounts()
	for _, volume := range hostileVolumes() {
		a.Places = append(
			a.Places,
			place{Dir: mountDir + volume + "/..data", Name: "password"},
			place{Dir: mountDir + volume + "/conf", Name: "app.yaml"},
		)
	}
	return a
}

// assaultOnMounts is on its mounts alone.
func (s *scene) assaultOnMounts() assault {
	a := assault{Scratch: mountDir + "scratch", Outside: s.onNode(s.honest, "empty-dir", "canary", "canary"), Seconds: 6}
	a.Tries = 2 * hostileTries // some meet a generation that goes, and don't count
	for _, volume := range hostileVolumes() {
		a.Places = append(
			a.Places,
			place{Dir: mountDir + volume, Name: "key"},
			place{Dir: "/dirs/" + volume, Name: "app.yaml"},
			place{Dir: "/keys/" + volume, Name: "key", Alone: true},
			place{Dir: "/keys/" + volume + "/conf", Name: "app.yaml", Alone: true},
		)
	}
	return a
}

// assail has the pod's first container make attacks.
func (p *pod) assail(ctx context.Context, command string, a assault) (siege, error) {
	arg, err := json.Marshal(a)
	if err != nil {
		return siege{}, err
	}
	answer, err := p.ask(ctx, p.Spec.Containers[0].Name, command, string(arg))
	if err != nil {
		return siege{}, err
	}
	var got siege
	return got, json.Unmarshal([]byte(answer), &got)
}

// inBackground starts something that attacks, and returns the function that waits for it.
func (s *scene) inBackground(attack func(context.Context) (siege, error)) (wait func() siege) {
	var result siege
	done := make(chan error, 1)
	go func() {
		var err error
		result, err = attack(s.t.Context())
		done <- err
	}()
	return func() siege {
		s.t.Helper()
		if err := <-done; err != nil {
			s.t.Fatal(err)
		}
		return result
	}
}

// withstood fails the test for each attack that has succeeded, and for each that would
// not succeed anywhere. It returns how many tries there were that had something to attack.
func (s siege) withstood(t *testing.T, who string) int {
	t.Helper()
	total := s.log(t, who)
	for name, one := range s.Report {
		if len(one.Succeeded) > 0 {
			t.Errorf("%s: %s succeeded in %d of %d tries: %q", who, name, one.Answers["ok"], one.Tries, one.Succeeded)
		}
	}
	for name, one := range s.Rehearsal {
		if a := one.Answers; a["ok"]+a["ENOTSUP"]+a["ENOTTY"]+a["ENOSYS"] == 0 {
			t.Errorf("%s: %s does not even succeed where it may: %v", who, name, a)
		}
	}
	return total
}

// log tells of all attacks, and returns how many tries there were that had something to
// attack.
func (s siege) log(t *testing.T, who string) int {
	t.Helper()
	total := 0
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(s.Report)) {
		one := s.Report[name]
		lines = append(lines, fmt.Sprintf("%s: %d %v", name, one.Tries, one.Answers))
		total += one.Tries
		if !strings.HasPrefix(name, "escape-") {
			// A generation that went in the middle of an attack, or a file that never was there.
			total -= one.Answers["ENOENT"]
		}
	}
	t.Logf("%s: %d tries:\n  %s", who, total, strings.Join(lines, "\n  "))
	return total
}

// noMount is the probe's answer where it may not even mount something of its own.
const noMount = "no mount of its own"

// remounts has each hostile pod try to make its mounts writable, and returns how many
// tries of those without rights on the node were withstood.
func (s *scene) remounts() int {
	s.t.Helper()
	ask := func(p *pod, command string, a assault) siege {
		got, err := p.assail(s.t.Context(), command, a)
		if err != nil {
			s.t.Fatalf("%s: %v", p.Name, err)
		}
		return got
	}
	a := s.assaultOnMounts()
	got := ask(s.hostile, "remount", a)
	got.Rehearsal = nil // who may not mount has nothing to rehearse with
	tries := got.withstood(s.t, "remount by root in a container")
	a.UserNamespace = true
	got = ask(s.hostile, "remount", a)
	if got.Rehearsal["unmount"].Answers[noMount] > 0 {
		s.t.Log("this node lets nobody mount in a user namespace of a container's making")
		got.Rehearsal = nil
	}
	tries += got.withstood(s.t, "remount by root of a user namespace that the container made")

	a.UserNamespace = false
	for _, p := range s.admins {
		got := ask(p, "remount", a)
		if p.Name != ownUsers {
			// Nothing holds these, but they are held to their own volume: see unharmed.
			got.log(s.t, "remount with CAP_SYS_ADMIN on the node, "+p.Name)
			continue
		}
		delete(got.Report, "unmount") // it is the container's own mount namespace
		tries += got.withstood(s.t, "remount with CAP_SYS_ADMIN in a pod with users of its own")
	}
	// Whom nothing keeps from it finds what nobody else may find: the attack can succeed.
	a.Scratch = "/"
	if got := ask(s.inspector, "escape", a).Report["escape-process-root"]; len(got.Succeeded) == 0 {
		s.t.Errorf("not even the node's root finds %s: %v", a.Outside, got.Answers)
	}
	return tries
}
