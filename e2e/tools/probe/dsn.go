package main

import (
	"fmt"
	"net/url"
	"os"

	"sigs.k8s.io/yaml"
)

// address is what net/url reads of a DSN.
type address struct {
	User     string     `json:"user"`
	Password string     `json:"password"`
	Host     string     `json:"host"`
	Path     string     `json:"path"`
	Query    url.Values `json:"query"`
}

// dsn reads the field dsn of a YAML file.
func dsn(file string) (*address, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var settings struct{ DSN string }
	if err := yaml.UnmarshalStrict(text, &settings); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	u, err := url.Parse(settings.DSN)
	if err != nil {
		return nil, fmt.Errorf("read the DSN of %s: %w", file, err)
	}
	password, _ := u.User.Password()
	return &address{u.User.Username(), password, u.Host, u.Path, u.Query()}, nil
}
