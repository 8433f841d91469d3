"""`python -m cluster.mqtt --runtime DIR --index I --incarnation K` runs a gateway process of MQTT."""

from cluster.mqtt.server import main

if __name__ == "__main__":
    main()
