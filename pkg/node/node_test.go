package node

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/metrics"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/writer"
)

// TestSettingsAreGivenOn: each setting reaches its packages.
func TestSettingsAreGivenOn(t *testing.T) {
	s := Settings{
		Driver: "d", NodeName: "n", KubeletDir: "/k", Identity: authz.IdentityPod, ChangeDetection: manager.Watch, CrossNamespace: true,
		ResyncInterval: 2 * time.Minute, DefaultSpread: 3 * time.Minute, PublishWait: 4 * time.Second,
		MaxVolumeSize: 1 << 20, MaxTotalSize: 2 << 20, MaxCachedSize: 3 << 20,
	}
	expect.Equal(t, "settings that this test lacks", zeros(s), nil)
	w := newWiring(s, systemOf(t, &clients{}), nil)
	reads, shows := w.reads, w.shows
	expect.Equal(t, "what the manager gets",
		Settings{NodeName: reads.NodeName, ChangeDetection: reads.ChangeDetection, ResyncInterval: reads.ResyncInterval, MaxCachedSize: reads.MaxCachedSize},
		Settings{NodeName: s.NodeName, ChangeDetection: s.ChangeDetection, ResyncInterval: s.ResyncInterval, MaxCachedSize: s.MaxCachedSize})
	got := Settings{
		Driver: shows.Driver, NodeName: shows.NodeName, KubeletDir: shows.KubeletDir, CrossNamespace: shows.CrossNamespace,
		ResyncInterval: shows.ResyncInterval, DefaultSpread: shows.DefaultSpread, PublishWait: shows.PublishWait,
		MaxVolumeSize: shows.MaxVolumeSize, MaxTotalSize: shows.MaxTotalSize,
	}
	want := s
	want.Identity, want.ChangeDetection, want.MaxCachedSize = "", "", 0
	expect.Equal(t, "what the publisher gets", got, want)
}

// TestWhatAnIdentityNeeds: each identity reads with a client of its own kind, and of all options the packages lack only those of other
// identities. A package takes most missing options for no limit, no log and the like.
func TestWhatAnIdentityNeeds(t *testing.T) {
	for identity, want := range map[string]struct{ client, reads, shows string }{
		authz.IdentityPlugin: {"own", "Accounts RefusalsPass", "Identity NodeRights Objects"},
		authz.IdentityPod:    {"with tokens", "RefusalsPass", "NodeRights Objects"},
		authz.IdentityNode:   {"as n", "Accounts", "Identity Objects Reviews"},
	} {
		made := &clients{}
		own := must.Get(made.Own())(t)
		w := newWiring(Settings{
			Driver: "d", NodeName: "n", KubeletDir: "/k", ChangeDetection: manager.Watch, CrossNamespace: true, ResyncInterval: 1, DefaultSpread: 1,
			PublishWait: 1, MaxVolumeSize: 1, MaxTotalSize: 1, MaxCachedSize: 1, Identity: identity,
		}, systemOf(t, made), own)
		must.Get(w.readAs(identity))(t)
		expect.Equal(t, identity+": reads with the client", made.kinds[w.reads.Client], want.client)
		expect.Equal(t, identity+": the manager lacks", strings.Join(zeros(w.reads), " "), want.reads)
		expect.Equal(t, identity+": the publisher lacks", strings.Join(zeros(w.shows), " "), want.shows) // New sets Objects
	}
}

// clients makes clients that send nothing. kinds says of each how it was made.
type clients struct{ kinds map[*apiclient.Client]string }

func (c *clients) Own() (*apiclient.Client, error) { return c.made("own") }

func (c *clients) WithTokens(*authz.Tokens) (*apiclient.Client, error) { return c.made("with tokens") }

func (c *clients) AsNode(name string) (*apiclient.Client, error) { return c.made("as " + name) }

func (c *clients) made(kind string) (*apiclient.Client, error) {
	client, err := apiclient.New(&rest.Config{Host: "http://api.test"}, http.DefaultClient)
	if c.kinds == nil {
		c.kinds = map[*apiclient.Client]string{}
	}
	c.kinds[client] = kind
	return client, err
}

// systemOf returns a System that has everything.
func systemOf(t *testing.T, c *clients) System {
	t.Helper()
	limit := loglimit.New(klog.Background(), func() {})
	t.Cleanup(limit.Close)
	return System{
		Client: must.Get(c.Own())(t), Clients: c, Requests: requests.New(), Mounts: struct{ publisher.Mounts }{}, AttributePrefix: "user.",
		NotShared: func() error { return nil }, Opens: struct{ opened.Watcher }{}, NewWriter: func(writer.Options) publisher.Writer { return nil },
		Events: struct{ binding.Events }{}, Metrics: metrics.New(apiversion.Info{}), LogLimit: limit,
	}
}

// zeros returns the names of the fields that are not set, also those of embedded structs, sorted.
func zeros(of any) (names []string) {
	for field, value := range reflect.ValueOf(of).Fields() {
		switch {
		case field.Anonymous:
			names = append(names, zeros(value.Interface())...)
		case value.IsZero():
			names = append(names, field.Name)
		}
	}
	slices.Sort(names)
	return names
}
