package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/refvol/refvol/e2e/tools/gobuild"
)

// engine is the container engine that kind's nodes run in.
type engine struct {
	scripts string
	cache   string
	// host is the DOCKER_HOST of the engine that was started for this run; "" when
	// one was there.
	host string
	say  func(format string, args ...any)
}

// startEngine returns an engine that answers. It installs and starts what is
// missing where that is possible.
func startEngine(ctx context.Context, s *settings, say func(string, ...any)) (*engine, error) {
	e := &engine{scripts: filepath.Join(s.root, "e2e", "node-image"), cache: s.cache, say: say}
	if err := e.require(ctx, "engine"); err != nil {
		return nil, err
	}
	host, err := e.answer(ctx, "engine.sh", "start")
	if err != nil {
		return nil, err
	}
	e.host = host
	return e, nil
}

// stop stops the engine if it was started for this run.
func (e *engine) stop(ctx context.Context) error {
	if e.host == "" {
		return nil
	}
	return e.script("engine.sh", "stop").run(ctx)
}

// nodeImage returns the node image to use. A version that the settings name is built here.
func (e *engine) nodeImage(ctx context.Context, s *settings) (string, error) {
	if s.kubernetes != "" {
		e.say("node image: the project's own, of Kubernetes %s", s.kubernetes)
	} else if err := registryAnswers(ctx, "https://registry-1.docker.io"); err != nil {
		e.say("node image: the project's own, since the registry of the usual one doesn't answer (%v)", err)
	} else {
		e.say("node image: kind's usual one")
		return usualImage(ctx, s.kubernetesModule())
	}
	if err := e.require(ctx, "image"); err != nil {
		return "", err
	}
	return e.answer(ctx, "build.sh")
}

// cgroupVersion returns the version of the cgroups that the nodes have, "1" or "2".
func (e *engine) cgroupVersion(ctx context.Context) (string, error) {
	info := command{args: []string{"docker", "info", "--format", "{{.CgroupVersion}}"}, env: e.env()}
	return info.output(ctx, os.Stderr)
}

// usualImage returns the node image that kind takes by itself, as its sources say. Its tag tells the version.
func usualImage(ctx context.Context, module string) (string, error) {
	dir, err := gobuild.Go(ctx, module, nil, "list", "-f", "{{.Dir}}", "sigs.k8s.io/kind/pkg/apis/config/defaults")
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(dir, "image.go"))
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`const Image = "(.+)"`).FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("%s names no image", dir)
	}
	return string(found[1]), nil
}

// require sees to it that the machine has what is needed for something.
func (e *engine) require(ctx context.Context, what string) error {
	_, err := e.answer(ctx, "deps.sh", what)
	return err
}

// answer runs a script that prints what it found out, or when it fails, the reason.
func (e *engine) answer(ctx context.Context, name string, args ...string) (string, error) {
	answer, err := e.script(name, args...).output(ctx, os.Stderr)
	if err != nil && answer != "" {
		return "", errors.New(answer)
	}
	return answer, err
}

func (e *engine) script(name string, args ...string) command {
	return command{
		args: append([]string{filepath.Join(e.scripts, name)}, args...),
		env:  append(e.env(), "REFVOL_CACHE="+e.cache),
	}
}

// env is what the engine's clients need in their environment.
func (e *engine) env() []string {
	if e.host == "" {
		return nil
	}
	return []string{"DOCKER_HOST=" + e.host}
}

// registryAnswers asks for the API of an image registry, and takes nothing for an
// answer that a proxy or a captive gateway could give in its place.
func registryAnswers(ctx context.Context, base string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v2/", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if version := response.Header.Get("Docker-Distribution-Api-Version"); version != "registry/2.0" {
		return fmt.Errorf("%s answers %q and is no registry", request.URL, response.Status)
	}
	return nil
}
