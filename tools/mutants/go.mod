module github.com/refvol/refvol/tools/mutants

go 1.26.0

replace github.com/refvol/refvol => ../../

require (
	github.com/refvol/refvol v0.0.0-00010101000000-000000000000
	go.uber.org/goleak v1.3.0
	go.yaml.in/yaml/v3 v3.0.5
)

require (
	github.com/moby/sys/mountinfo v0.7.2 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
